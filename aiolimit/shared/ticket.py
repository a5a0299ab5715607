"""What a key was granted by the engine, and when."""

from collections.abc import Callable
from math import inf
from typing import Final

from aiolimit.clock import Clock, Timer
from aiolimit.counts import Limits
from aiolimit.errors import Source

__all__ = ["Stamp", "Ticket"]

_IDLE: Final = 1.0  # seconds without use after which what is kept is given back
_ROUNDING: Final = 1e-9  # of a credit: a sum of fractions


class Stamp(float):
    """When something was charged, in this process's time, and what the engine calls that moment.

    engine: microseconds, which mean something to that engine only, and say from which entry to
        give back; None where it does not know of the charge, or not yet.
    """

    engine: float | None = None
    source: Source = "store"


class Ticket:
    """What a key has asked for, or was granted and has not spent."""

    __slots__ = (
        "credit",
        "expires",
        "is_asking",
        "is_hopeful",
        "is_lease",
        "is_used",
        "limits",
        "stamp",
        "timer",
    )

    def __init__(self, limits: Limits) -> None:
        self.limits = limits  # under which it was asked
        self.is_asking = True
        self.is_hopeful = False  # whether there was room, as far as was known
        self.is_lease = False
        self.is_used = False
        self.credit: float = 0
        self.stamp: Stamp | None = None
        self.expires = -inf
        self.timer: Timer | None = None

    def covers(self, cost: float, limits: Limits) -> bool:
        """Whether the cost was granted: what is charged to some of the rates is not for others."""
        if self.credit < cost * (1 - _ROUNDING) or not cost:
            return False
        if None not in limits and None not in self.limits:
            return True
        return [one is None for one in limits] == [one is None for one in self.limits]

    def keep(self, clock: Clock, until: float, on_end: Callable[[], object]) -> None:
        """Have it looked at when it expires, or a while earlier to see whether it is used."""
        self.sleep()
        self.expires = until
        self.is_used = False
        left = until - clock.time()
        self.timer = clock.call_later(max(0.0, min(left, _IDLE)), on_end)

    def sleep(self) -> None:
        """Have nothing called."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None
