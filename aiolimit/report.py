"""What a limiter tells of itself: a key's quota, the counts, and why the limit is what it is."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from math import floor
from typing import Literal

from aiolimit.errors import Reason, shown
from aiolimit.rate import Limit, Rate

__all__ = ["Explanation", "Quota", "Statistics"]


@dataclass(frozen=True, slots=True)
class Quota:
    """What a key has left. Of several rates the one that binds: the longest wait, the least left.

    rate: the rate that binds.
    limit: cost in `rate.per` seconds; `UNLIMITED` where the call named that.
    remaining: cost that would pass now.
    retry_after: seconds until a call would pass; 0 if it would now, None if it never would.
    reset_after: seconds until the whole limit is there again.
    """

    rate: Rate
    limit: Limit
    remaining: float
    retry_after: float | None
    reset_after: float


@dataclass(frozen=True, slots=True)
class Statistics:
    """The counts of a limiter since it was made, and what it holds now.

    admitted: calls that passed.
    completed: calls that have left their `async with`.
    in_flight: calls inside their `async with` now.
    rejected: calls that were refused, by `RateLimited.reason`.
    cancelled: callers that gave up while they waited.
    waiting: callers that wait now.
    keys: keys that are held now.
    evicted: keys that were forgotten because they were idle.
    """

    admitted: int
    completed: int
    in_flight: int
    rejected: Mapping[Reason, int]
    cancelled: int
    waiting: int
    keys: int
    evicted: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a call for this key would pass or not, now. `str()` of it is a sentence for a person.

    binding: what decides: "quota" (the window is full), "pace" (the burst is spent), "queue"
        (others wait for this key) or "nothing" (a call would pass).
    waiting: callers that wait for this key.
    retry_after: seconds until a call of cost 1 would pass, behind those who wait; None if it
        never would, as with a limit of 0.
    """

    limiter: str
    key: Hashable
    rates: tuple[Rate, ...]
    binding: Literal["nothing", "quota", "pace", "queue"]
    rate: Rate
    remaining: float
    waiting: int
    retry_after: float | None
    burst: float | None

    def __str__(self) -> str:
        key = shown(self.key)
        start = f"{self.limiter}: {' and '.join(str(rate) for rate in self.rates)} configured"
        if self.burst is not None:
            start += f", burst {self.burst:g}"
        if self.retry_after is None:
            return f"{start}; no call can pass."
        left = f"{_round(self.remaining)} of {self.rate.limit} left of {self.rate} for {key}"
        wait = f"{self.retry_after:.3g} s"
        match self.binding:
            case "nothing" if self.burst is not None:
                why = f"{_round(self.remaining)} may pass now for {key}, so a call passes"
            case "nothing":
                why = f"{left}, so a call passes"
            case "quota":
                why = f"{left}, so a new call waits {wait}"
            case "pace":
                why = f"{key} is ahead of its even pace, so a new call waits {wait}"
            case "queue":
                callers = "1 caller waits" if self.waiting == 1 else f"{self.waiting} callers wait"
                why = f"{callers} for {key}, so a new call waits {wait} behind them"
        return f"{start}; {why}."


def _round(cost: float) -> str:
    """A cost for a person: whole, or to a tenth below, so that it is not more than there is."""
    tenths = floor(cost * 10)
    return str(tenths // 10 if tenths % 10 == 0 else tenths / 10)
