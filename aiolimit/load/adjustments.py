"""What the load controller has changed, how often, and why: for metrics and annotations.

The rate moves a little at every step. An adjustment is worth telling: the rate is a fifth away
from what it was when one was told last. Its reason is what moved the rate most since then; the
parts of the law multiply, so the logarithm of the rate is a sum, and its greatest term is meant.
"""

from collections.abc import Iterable
from math import inf, log
from typing import Final, Literal

from aiolimit.load.law import LoadState

__all__ = ["Adjustments", "Direction"]

_TOLD: Final = 0.2  # of the rate
_HARDLY: Final = 1e-9

Direction = Literal["down", "up"]
_DIRECTIONS: Final[tuple[Direction, ...]] = ("down", "up")


class Adjustments:
    """The adjustments of one controller.

    pressures: the names of the pressures there may be.
    counts: by direction, and by reason: "cost", what a request takes; "share", of a core that
        this process gets; "refusals", what those take; "blind", the CPU could not be measured; or
        the name of a pressure, such as "memory". All begin at 0: Prometheus does not see the first
        step of what begins at 1.
    """

    __slots__ = ("_told", "counts")

    def __init__(self, pressures: Iterable[str] = ()) -> None:
        self.counts: dict[tuple[Direction, str], int] = {
            (direction, reason): 0
            for reason in ("cost", "share", "refusals", "blind", *pressures)
            for direction in _DIRECTIONS
        }
        self._told: LoadState | None = None

    def see(self, state: LoadState) -> None:
        """Take note of a new state."""
        told = self._told
        if state.rate == inf or state.cost is None:
            self._told = None  # it begins anew
            return
        if told is None:
            self._told = state
            return
        if abs(state.rate - told.rate) > _TOLD * told.rate:
            direction: Direction = "down" if state.rate < told.rate else "up"
            which = direction, _reason(told, state)
            self.counts[which] = self.counts.get(which, 0) + 1
            self._told = state


def _reason(before: LoadState, after: LoadState) -> str:
    """What moved the rate most."""
    if after.blind:
        return "blind"
    moved = log(after.rate / before.rate)
    by_factor = log(after.factor / before.factor)
    by_share = log(after.share / before.share)
    by_cost = log((before.cost or 1.0) / (after.cost or 1.0))
    # The name of a pressure that has gone is that of the state in which it was there.
    pressed = after if after.factor < before.factor else before
    parts = {
        pressed.binding: by_factor,
        "share": by_share,
        "cost": by_cost,
        "refusals": moved - by_factor - by_share - by_cost,
    }
    sign = 1 if moved > 0 else -1
    reason, most = max(parts.items(), key=lambda part: sign * part[1])
    return reason if sign * most > _HARDLY else "cost"
