"""What keys are called in the engine: nobody's text can forge the name of another.

`prefix limiter:{key}:window:n`. What is between the braces decides the slot in a cluster, so all
windows of a key are in one.
"""

from collections.abc import Hashable
from enum import Enum
from hashlib import blake2b
from typing import Final

from aiolimit.memory import OVERFLOW
from aiolimit.rate import Rate

__all__ = ["Names", "text_of"]

_LONG: Final = 200  # bytes; a longer key is told by its digest
_ESCAPED: Final = str.maketrans({sign: f"%{ord(sign):02X}" for sign in "%{}"})
_ESCAPED_NAME: Final = str.maketrans({sign: f"%{ord(sign):02X}" for sign in "%{}:*?[]\\"})


def text_of(key: Hashable) -> str:
    """A key as text, the same in every process; keys that are equal have one, others another.

    Raises `TypeError` for a key that has no text of its own: an object whose `repr` tells where
    it lies in memory.
    """
    if isinstance(key, str):
        text = str.__str__(key)
        return f"~{text}" if text.startswith("~") or not text else text
    return f"~.{_told(key)}"


def _told(key: object) -> str:
    # A member of an enum that is text or a number equals that, and is taken for it.
    if isinstance(key, str):
        return repr(str.__str__(key))
    if isinstance(key, Enum) and not isinstance(key, int):
        return f"{type(key).__qualname__}.{key.name}"
    if isinstance(key, (bool, int, float)):
        return repr(int(key)) if key == key // 1 else repr(float(key))  # 1 == 1.0 == True
    if isinstance(key, bytes) or key is None:
        return repr(key)
    if isinstance(key, tuple):
        return f"({','.join(map(_told, key))})"
    if isinstance(key, frozenset):
        return f"{{{','.join(sorted(map(_told, key)))}}}"
    if key is OVERFLOW:
        return "overflow"
    if type(key).__repr__ is object.__repr__:
        raise TypeError(
            f"a key that processes share must be text, a number, a tuple or have a repr of its "
            f"own, not {key!r}"
        )
    return f"{type(key).__qualname__}:{key!r}"


class Names:
    """The names of one limiter's keys."""

    __slots__ = ("_begin", "_windows", "start")

    def __init__(self, prefix: str, limiter: str) -> None:
        self.start = f"{prefix}{limiter.translate(_ESCAPED_NAME)}:"
        self._begin = f"{self.start}{{".encode("utf-8", "surrogatepass")
        self._windows: dict[tuple[tuple[Rate, ...], int | None], tuple[bytes, ...]] = {}

    def of(self, key: Hashable) -> bytes:
        """The part that all windows of a key have in common."""
        text = text_of(key).translate(_ESCAPED)
        raw = text.encode("utf-8", "surrogatepass")
        if len(raw) > _LONG:
            raw = b"~#" + blake2b(raw, digest_size=24).hexdigest().encode()
        return self._begin + raw + b"}"

    def windows(self, rates: tuple[Rate, ...], sub_windows: int | None) -> tuple[bytes, ...]:
        """What each rate adds: what changes the layout of its window, and nothing else."""
        found = self._windows.get((rates, sub_windows))
        if found is None:
            parts = "log" if sub_windows is None else str(sub_windows)
            ends: list[bytes] = []
            for rate in rates:
                end = f":{rate.period}:{parts}".encode()
                # A second rate with the same period counts by itself.
                same = sum(other.split(b"#")[0] == end for other in ends)
                ends.append(end + (b"#%d" % same if same else b""))
            found = tuple(ends)
            if len(self._windows) > 64:
                self._windows.clear()
            self._windows[rates, sub_windows] = found
        return found
