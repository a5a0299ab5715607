"""What a limiter counts off its fast lane: refusals, waits, and costs other than 1.

The fast lane counts by itself, as one addition each (`Limiter._entered` and so on). Everything
here only ever grows.
"""

from bisect import bisect_left
from typing import Final, NamedTuple

from aiolimit.errors import Reason, Source

__all__ = ["REASONS", "SOURCES", "WAIT_BOUNDS", "Tally", "Waits"]

REASONS: Final[tuple[Reason, ...]] = (
    "quota",
    "timeout",
    "queue_full",
    "cost_too_high",
    "overload",
)

#: The reason there is besides where processes share a store.
UNAVAILABLE: Final[tuple[Reason, ...]] = ("store_unavailable",)

SOURCES: Final[tuple[Source, ...]] = ("store", "local", "open", "closed")

#: Seconds: the upper bounds of the buckets in which waits are counted, all but the last.
WAIT_BOUNDS: Final = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Waits(NamedTuple):
    """How long the calls waited that passed.

    buckets: how many waited up to each of `WAIT_BOUNDS` and more than the one before; the last
        one counts those beyond all bounds.
    seconds: the sum of all waits.
    """

    buckets: tuple[int, ...]
    seconds: float


class Tally:
    """The counts of one limiter.

    shadow: whether what is decided is only counted, and refuses nobody.
    shared: whether a store is asked that may not answer.
    """

    __slots__ = (
        "_decided",
        "_reasons",
        "_waits",
        "cost_beyond",
        "cost_returned",
        "shadow",
        "sources",
        "waited_seconds",
    )

    def __init__(self, *, shadow: bool, shared: bool = False) -> None:
        self.shadow = shadow
        self._reasons = (*REASONS, *UNAVAILABLE) if shared else REASONS
        self._decided: dict[Reason, int] = dict.fromkeys(self._reasons, 0)
        self._waits = [0] * (len(WAIT_BOUNDS) + 1)
        self.waited_seconds = 0.0
        #: What was charged beyond a cost of 1 for each call that passed; below 0 for less. Both
        #: become infinite where a whole number would grow beyond what others can read.
        self.cost_beyond = 0.0
        #: What callers gave back with `Permit.adjust` or `cancel`.
        self.cost_returned = 0.0
        #: Decisions by where they came from; counted with a shared store only.
        self.sources: dict[Source, int] = dict.fromkeys(SOURCES, 0) if shared else {}

    def admit(self, cost: float) -> None:
        """Note what a call costs that passed, where that is not 1."""
        self.cost_beyond += cost - 1

    def settle(self, more: float) -> None:
        """Note what a call turned out to cost more than was charged, or less."""
        if more > 0:
            self.cost_beyond += more
        else:
            self.cost_returned -= more

    def refuse(self, reason: Reason) -> None:
        """Count a call that is refused, or would be."""
        self._decided[reason] += 1

    def wait(self, seconds: float) -> None:
        """Count a call that waited and passed."""
        self._waits[bisect_left(WAIT_BOUNDS, seconds)] += 1
        self.waited_seconds += seconds

    def rejected(self) -> dict[Reason, int]:
        """Calls that were refused, by reason."""
        return dict.fromkeys(self._reasons, 0) if self.shadow else dict(self._decided)

    def shadow_rejected(self) -> dict[Reason, int]:
        """Calls that passed, and would have been refused but for the shadow, by reason."""
        return dict(self._decided) if self.shadow else dict.fromkeys(self._reasons, 0)

    def waits(self, admitted: int) -> Waits:
        """The waits of so many calls that passed: those that were not counted here had none."""
        waited = list(self._waits)
        waited[0] += max(0, admitted - sum(waited))
        return Waits(tuple(waited), self.waited_seconds)
