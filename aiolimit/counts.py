"""What is asked of counts, wherever they are kept: one verb, and what is told of a key."""

from collections.abc import Hashable
from typing import Literal, NamedTuple, Protocol

__all__ = ["Counts", "Limits", "Look"]

#: One limit per rate, in the order of the rates; None where that rate does not apply.
Limits = tuple[float | None, ...]


class Look(NamedTuple):
    """One rate of one key as it is now: see `Quota`, and what causes the wait."""

    remaining: float
    retry_after: float
    reset_after: float
    more_after: float
    binding: Literal["nothing", "quota", "pace", "warm_up", "hold"]


class Counts(Protocol):
    """The counts of one limiter, or what they are seen through: see `MemoryStore`."""

    @property
    def layout(self) -> int:
        """How often the periods have changed."""
        ...

    def take(
        self,
        key: Hashable,
        want: float,
        least: float,
        limits: Limits,
        now: float,
        *,
        ahead: float = 0,
    ) -> tuple[float, float]:
        """Take up to `want`, at least `least`; returns what was granted, and the wait."""
        ...

    def charge(self, key: Hashable, cost: float, limits: Limits, now: float) -> float:
        """Take the cost whether it fits or not; returns when it was."""
        ...

    def give_back(
        self,
        key: Hashable,
        cost: float,
        limits: Limits,
        layout: int | None,
        now: float,
        at: float,
    ) -> None:
        """Give back what was taken `at` that time under those limits."""
        ...

    def look(self, key: Hashable, cost: float, limits: Limits, now: float) -> list[Look | None]:
        """How the key stands under each rate, None where a rate does not apply."""
        ...
