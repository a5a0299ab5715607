"""The paths that are exempt from limits: whole ones, and all below one."""

from collections.abc import Iterable
from typing import Final

__all__ = ["Paths"]

_DOTS: Final = frozenset((".", ".."))


class Paths:
    """Paths as a user gives them: "/health" is one, "/metrics/*" is "/metrics" and all below.

    Raises `ValueError` for what could never match.
    """

    __slots__ = ("_below", "_whole")

    def __init__(self, given: Iterable[str]) -> None:
        whole, below = set(), []
        for path in given:
            base = path.removesuffix("/*")
            if not path.startswith("/") or "*" in base:
                raise ValueError(
                    "exempt takes whole paths, such as '/health', or all below one, such as "
                    f"'/metrics/*', not {path!r}"
                )
            whole.add(base or "/")
            if base != path:
                below.append(f"{base}/")
        self._whole = frozenset(whole)
        self._below = tuple(below)

    def __bool__(self) -> bool:
        return bool(self._whole)

    def __contains__(self, path: str) -> bool:
        if path in self._whole:
            return True
        # Where there are dots, others may see another path: whoever resolves it, or passes it on.
        return path.startswith(self._below) and _DOTS.isdisjoint(path.split("/"))
