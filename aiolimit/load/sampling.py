"""What was between two readings: the totals of the sensors and the counts, made into a sample."""

from collections import deque
from collections.abc import Mapping
from math import inf
from typing import Any, Final

from aiolimit.load.gate import Gate
from aiolimit.load.law import Sample
from aiolimit.load.sensors import OwnSensor

__all__ = ["Sampling"]

_PAUSES_OVER: Final = 2.0  # seconds
_LAG_OVER: Final = 10.0  # seconds
_LEFT: Final = 0.25  # of the cores, the least that others are taken to leave


class Sampling:
    """The samples of one controller, each since the one before.

    targets: of the built-in pressures, by name.
    own: the sensors of the user's.
    """

    def __init__(
        self, targets: Mapping[str, float], own: Mapping[str, OwnSensor], gate: Gate
    ) -> None:
        self.last: dict[str, Any] | None = None  # the readings that the next sample begins with
        self._targets = targets
        self._own = own
        self._gate = gate
        self._last_at = 0.0
        self._counted = (0, 0, 0)
        self._pauses: deque[tuple[float, float]] = deque()
        self._iterations: deque[tuple[float, float]] = deque()

    def begin(self) -> None:
        """Begin anew: the next readings are the first."""
        self.last = None
        self._pauses.clear()

    def lag(self) -> float:
        """The longest iteration of the loop that was seen lately."""
        return max((longest for _, longest in tuple(self._iterations)), default=0.0)

    def take(
        self, now: float, readings: dict[str, Any], counts: tuple[int, int, int]
    ) -> Sample | None:
        """The sample up to now; None after the first readings, and where no time has passed.

        counts: calls admitted, completed and refused so far.
        """
        gate, sample = self._gate, None
        readings["lagged"] = gate.lagged(now)
        if self.last is not None and now > self._last_at:
            sample = self._between(now, readings, self.last, counts)
            self._iterations.append((now, sample.longest))
            while now - self._iterations[0][0] > _LAG_OVER:
                self._iterations.popleft()
        self.last, self._last_at, self._counted = readings, now, counts
        gate.capped, gate.shortest, gate.longest = 0, inf, 0.0
        return sample

    def _paused(self, now: float, total: float | None) -> float | None:
        """The share of the last seconds in which the collector of garbage has stopped us.

        Of seconds, as one pause in a step of an eighth of a second is no storm.
        """
        if total is None:
            return None
        self._pauses.append((now, total))
        while now - self._pauses[0][0] > _PAUSES_OVER:
            self._pauses.popleft()
        since, before = self._pauses[0]
        return (total - before) / max(_PAUSES_OVER, now - since)

    def _between(
        self, now: float, new: dict[str, Any], old: dict[str, Any], counts: tuple[int, int, int]
    ) -> Sample:
        seconds = now - self._last_at
        gate = self._gate

        def grown(name: str) -> float | None:
            before, after = old.get(name), new.get(name)
            return None if before is None or after is None else max(0.0, after - before)

        cpu, waited = grown("cpu"), grown("scheduler")
        quota = inf
        for name in ("group", "machine"):
            before, after = old.get(name), new.get(name)
            # What the scheduler tells of the machine is better: others may have to make room.
            if before is None or after is None or (name == "machine" and waited is not None):
                continue
            cores, others = after[0], (after[1] - before[1]) / seconds
            quota = min(quota, max(cores - others, _LEFT * cores))
        grew = [max(0, after - before) for after, before in zip(counts, self._counted, strict=True)]
        blocked = 0.0
        if cpu is not None and (waited is not None or quota >= 1):
            lagged = new["lagged"] - old["lagged"]
            blocked = max(0.0, lagged - cpu - (waited or 0.0))
        pressures = {name: own.pressure(now) for name, own in self._own.items()}
        for name, target in self._targets.items():
            share = self._paused(now, new.get("gc")) if name == "gc" else new.get(name)
            if share is not None:
                pressures[name] = share / target
        return Sample(
            at=now,
            seconds=seconds,
            cpu=cpu,
            blocked=min(blocked, seconds),
            waited=waited or 0.0,
            quota=quota,
            admitted=grew[0],
            completed=grew[1],
            refused=grew[2],
            capped=gate.capped + gate.waiting(),
            shortest=gate.shortest,
            longest=gate.longest,
            oldest=gate.oldest(now),
            pressures={name: value for name, value in pressures.items() if value is not None},
        )
