"""Warm-up: limits that begin lower, rise while there is traffic, and fall again after idleness.

1. At warmth w a limit L is `min(L, max(1, floor(L * g)))`, with g = start + (1 - start) * w: it is
   never above L, passes at least a cost of 1, and leaves a limit of 0 at 0.
2. Warmth rises by dt / over in active time: between two attempts no further than `idle_after`
   apart, and while somebody waits. Not in time since the start (a process that was idle for its
   first hour is cold), and not with what is admitted (sparse traffic would never warm it).
3. A longer gap adds nothing. What it is longer than `idle_after` cools, by d / cool_down.
4. All of it is worked out from times when the next call comes. There is no task.

What follows is arithmetic: it takes `now`, in seconds, and treats a step back as no time passed.
"""

from dataclasses import dataclass
from math import ceil, floor, inf, sqrt
from typing import Final, Literal, NamedTuple

from aiolimit.arguments import number

__all__ = ["PACE_BURST", "Ramp", "Timing", "WarmUp", "bent"]

#: Seconds: how far ahead of the ramp's pace admissions may be.
PACE_BURST: Final = 0.05
_LONG: Final = 2.0  # seconds: in a longer period `start * limit` at once is no gentle start
_IDLE: Final = 60.0  # seconds: the least default of `idle_after`
_GRACE: Final = 1e-6  # seconds by which a sum of times may be off
_ROUNDING: Final = 1e-9  # of a limit: who has slept until the ramp reaches it must find it there


class Timing(NamedTuple):
    """A warm-up for limits of a given period; all but `start` are seconds."""

    start: float
    over: float
    idle_after: float
    cool_down: float


@dataclass(frozen=True, slots=True)
class WarmUp:
    """How a limiter starts cold: its limits begin at a share and rise to the whole.

    start: the share of each limit that a cold limiter allows, above 0 up to 1; 0.5 to 0.7 suits
        most services.
    over: seconds of traffic until the whole limit is reached, 0 or more; 10 by default. 0 is no
        warm-up.
    windows: the same as a number of the limiter's longest periods, in place of `over`.
    idle_after: seconds without attempts or waiters after which it begins to cool, 0 or more; by
        default 60 or two of the longest periods, whichever is more.
    cool_down: seconds in which a warm limiter cools down, 0 or more; by default as `over`.
    reset: "gradual" cools over `cool_down`; "hard" makes it cold as soon as it is idle.
    pace: spread admissions evenly while it warms, at most 50 ms ahead; by default where a rate's
        period is longer than 2 s, because a window would let its share pass in one instant.
    per_key: each key warms by itself, for keys that are hosts to be spared; by default the
        limiter warms as a whole, as a process does.

    Raises `ValueError` for a number out of range and `TypeError` for what is not a number.
    """

    start: float = 0.6
    over: float | None = None
    windows: float | None = None
    idle_after: float | None = None
    cool_down: float | None = None
    reset: Literal["gradual", "hard"] = "gradual"
    pace: bool | None = None
    per_key: bool = False

    def __post_init__(self) -> None:
        start = number(self.start, "start")
        if not 0 < start <= 1:
            raise ValueError(f"start must be above 0 and at most 1, not {self.start!r}")
        for name in ("over", "windows", "idle_after", "cool_down"):
            value = getattr(self, name)
            if value is not None and not 0 <= number(value, name) < inf:
                unit = "periods" if name == "windows" else "seconds"
                raise ValueError(
                    f"{name} must be a finite number of {unit} from 0 up, not {value!r}"
                )
        if self.over is not None and self.windows is not None:
            raise ValueError(
                f"give over={self.over!r} (seconds) or windows={self.windows!r} (periods), not both"
            )
        if self.reset not in ("gradual", "hard"):
            raise ValueError(f"reset must be 'gradual' or 'hard', not {self.reset!r}")
        if self.pace not in (None, True, False):
            raise TypeError(f"pace must be True, False or None, not {self.pace!r}")
        if not isinstance(self.per_key, bool):
            raise TypeError(f"per_key must be True or False, not {self.per_key!r}")

    def timing(self, longest: float) -> Timing:
        """What it means for limits whose longest period is so many seconds."""
        over = 10.0 if self.over is None else self.over
        if self.windows is not None:
            over = self.windows * longest
        idle_after = max(_IDLE, 2 * longest) if self.idle_after is None else self.idle_after
        cool_down = over if self.cool_down is None else self.cool_down
        return Timing(self.start, over, idle_after, 0.0 if self.reset == "hard" else cool_down)

    def paces(self, period: float) -> bool:
        """Whether admissions under a rate of that period are spread while it warms."""
        return period > _LONG if self.pace is None else self.pace


def bent(limit: float, warmth: float, start: float) -> float:
    """What a limit is at that warmth."""
    if warmth >= 1:
        return limit
    share = start + (1 - start) * warmth
    return min(limit, max(1, floor(limit * share * (1 + _ROUNDING))))


class Ramp:
    """How warm something is, and how much of an even pace has gone by on the way.

    warmth: 0 to 1, as it was `at` that time.
    paced: the integral of g over time, seconds: a pacer that lives in this time drains at a
        constant rate.
    """

    __slots__ = ("at", "paced", "waits", "warmth")

    def __init__(self, now: float) -> None:
        self.warmth = 0.0
        self.at = now  # of the latest attempt
        self.waits = False  # whether somebody has waited ever since
        self.paced = 0.0

    def warmth_at(self, now: float, timing: Timing) -> float:
        """How warm it is for an attempt that comes now."""
        if timing.over <= 0 or timing.start >= 1:
            return 1.0
        gap = max(0.0, now - self.at)
        if self.waits or gap <= timing.idle_after + _GRACE:
            warmth = self.warmth + gap / timing.over
            return warmth if warmth < 1 - _ROUNDING else 1.0
        if timing.cool_down <= 0:
            return 0.0
        return max(0.0, self.warmth - (gap - timing.idle_after) / timing.cool_down)

    def attempt(self, now: float, timing: Timing) -> float:
        """Note an attempt, whatever becomes of it; returns the warmth."""
        if now > self.at:
            warmth = self.warmth_at(now, timing)
            self.paced = self.paced_at(now, timing)
            self.warmth, self.at = warmth, now
        return self.warmth_at(now, timing)

    def paced_at(self, now: float, timing: Timing) -> float:
        """The paced time of an attempt that comes now."""
        gap = max(0.0, now - self.at)
        after = self.warmth_at(now, timing)
        rising = min(gap, (1 - self.warmth) * timing.over) if after >= self.warmth else 0.0
        if not rising:
            # At full warmth it is plain time; and after idleness any pace is forgotten anyway.
            return self.paced + gap * (1.0 if after >= 1 else timing.start)
        low = timing.start + (1 - timing.start) * self.warmth
        high = low + (1 - timing.start) * rising / timing.over
        return self.paced + rising * (low + high) / 2 + (gap - rising)

    def wait_for_pace(self, paced: float, now: float, timing: Timing) -> float:
        """Seconds of activity until the paced time has come to that."""
        left = paced - self.paced_at(now, timing)
        if left <= 0:
            return 0.0
        warmth = self.warmth_at(now, timing)
        if timing.over <= 0 or warmth >= 1:
            return left
        # left = g x + slope x^2 / 2 while it rises, solved for x; written so that no digits are
        # lost where the slope is small.
        share = timing.start + (1 - timing.start) * warmth
        slope = (1 - timing.start) / timing.over
        seconds = 2 * left / (share + sqrt(share * share + 2 * slope * left))
        rising = (1 - warmth) * timing.over
        if seconds > rising:
            seconds = rising + left - rising * (share + 1) / 2
        return seconds

    def wait_for_limit(self, bent_to: float, limit: float, now: float, timing: Timing) -> float:
        """Seconds of activity until `limit` is bent to no less than that."""
        warmth = self.warmth_at(now, timing)
        if warmth >= 1 or bent_to <= bent(limit, warmth, timing.start):
            return 0.0
        needed = min(1.0, (bent_to / limit - timing.start) / (1 - timing.start))
        return max(0.0, (needed - warmth) * timing.over)

    def levels(self, limit: float, now: float, timing: Timing) -> tuple[int, int]:
        """The whole numbers between what the limit is bent to now and what it is in the end."""
        return int(bent(limit, self.warmth_at(now, timing), timing.start)), ceil(limit)
