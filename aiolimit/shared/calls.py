"""How a limiter's calls are put to the engine, and what its answers mean here."""

from collections.abc import Callable, Hashable, Sequence
from math import inf
from time import monotonic
from typing import Final

from aiolimit.clock import Clock
from aiolimit.counts import Limits
from aiolimit.memory import MemoryStore
from aiolimit.ramps import Ramps
from aiolimit.rate import Rate
from aiolimit.shared.mirror import learn, lost_since, windows_of
from aiolimit.shared.names import Names
from aiolimit.shared.script import Answer, HeardWindow, Shape
from aiolimit.shared.sharing import Sharing

__all__ = ["Calls"]

_SHAPES: Final = 256  # sets of limits whose calls are kept packed
_FORMERS: Final = 8  # changes of the periods that are remembered, the latest


class Calls:
    """The calls of one limiter.

    mirror: what this process knows of the keys; its rates are those of the limiter.
    """

    def __init__(
        self,
        sharing: Sharing,
        mirror: MemoryStore,
        ramps: Ramps | None,
        clock: Clock,
        time: Callable[[], float],
    ) -> None:
        self.names: Names = sharing.names
        self.time = time
        self._sharing = sharing
        self._mirror = mirror
        self._ramps = ramps
        self._tells_time = clock.time is not monotonic
        self._offset = 0.0  # the engine's clock less this process's, seconds
        self._formers: list[tuple[tuple[Rate, ...], float]] = []  # rates that matter until then
        self._shapes: dict[Limits, Shape] = {}
        #: Called with a key that the engine has lost, and when it has told of it before.
        self.on_loss: Callable[[Hashable, float], object] = lambda _key, _since: None

    def shape(self, key: Hashable, limits: Limits, *, bends: bool = False) -> Shape:
        """Of a call for that key; where it bends, under what is left of the limits by now."""
        if bends:
            limits = self.bounded(limits)
            if self._ramps is not None:
                limits = self._ramps.in_force(key, limits, self.time())
        if self._formers:
            self._forget_formers()
        shape = self._shapes.get(limits)
        if shape is None:
            shape = self._shape_of(limits)
        return shape

    def _shape_of(self, limits: Limits) -> Shape:
        mirror, names = self._mirror, self.names
        rates, parts = mirror.rates, mirror.sub_windows
        seeds = [_seeds(old, names.windows(old, parts), rates) for old, _ in self._formers]
        if len(self._shapes) >= _SHAPES:
            self._shapes.clear()
        ends = names.windows(rates, parts)
        shape = self._shapes[limits] = Shape(ends, rates, limits, parts, mirror.burst, seeds)
        return shape

    def bounded(self, limits: Limits) -> Limits:
        """The part of the limits that may be asked for, while other processes come back."""
        part = self._sharing.part()
        return limits if part >= 1 else tuple(one and max(1, one * part // 1) for one in limits)

    @property
    def limits(self) -> Limits:
        """Those of the rates."""
        return tuple(rate.limit for rate in self._mirror.rates)

    @property
    def layout(self) -> int:
        """How often the periods have changed."""
        return self._mirror.layout

    def now(self) -> float | None:
        """The time to tell the engine; None where its own is meant."""
        return self.time() if self._tells_time else None

    def engine_time(self, at: float) -> float:
        """What the engine calls a moment of this process, microseconds, as far as is known."""
        return (at + self._offset) * 1e6

    def told_at(self, key: Hashable) -> float:
        """When the engine told of the key last, by its own clock; -1 if that is not known."""
        return max((window.told_at for window in windows_of(self._mirror, key)), default=-1.0)

    def born(self, key: Hashable) -> float:
        """Since when the engine knows the key, by its clock; infinite if that is not known."""
        return max((window.born for window in windows_of(self._mirror, key)), default=inf)

    def tell_at(self, key: Hashable, at: float) -> None:
        """Take that for the time when the engine told of the key."""
        for window in windows_of(self._mirror, key):
            window.told_at = at

    @property
    def fastest(self) -> float:
        """The highest pace there has been, cost a second."""
        return self._mirror.fastest

    def read(self, raw: bytes, key: Hashable, limits: Limits, layout: int, shape: Shape) -> Answer:
        """Read an answer, and note what it tells of the key, if the periods are still the same."""
        heard = self.time()
        is_former = layout != self._mirror.layout
        known = None if is_former else self._mirror.entries.get(key)
        since = -1.0
        if type(known) is HeardWindow:  # most are: see `lost_since`
            told_at, total, last = known.told_at, known.total, known.last
            answer = shape.answer(raw, heard, known)
            if answer.windows and total and answer.windows[0].born > told_at >= 0:
                if heard - last < self._mirror.rates[0].per:
                    since = told_at
        else:
            answer = shape.answer(raw, heard)
            if known is not None:
                since = lost_since(known, self._mirror.rates, limits, answer)
        self._offset = answer.at / 1e6 - heard
        if not is_former:
            learn(self._mirror, key, limits, answer)
        if since >= 0:
            self.on_loss(key, since)
        return answer

    def use_rates(self, old: tuple[Rate, ...]) -> bool:
        """Take over the rates of the mirror. Returns whether windows move to other periods."""
        self._shapes.clear()
        if [rate.per for rate in old] == [rate.per for rate in self._mirror.rates]:
            return False
        until = self.time() + max(rate.per for rate in old)
        self._formers = [*self._formers, (old, until)][-_FORMERS:]
        return True

    @property
    def layouts(self) -> Sequence[tuple[Rate, ...]]:
        """The rates under whose windows something may be charged."""
        return [self._mirror.rates, *(old for old, _ in self._formers)]

    def _forget_formers(self) -> None:
        now = self.time()
        left = [one for one in self._formers if now < one[1]]
        if len(left) < len(self._formers):
            self._formers = left
            self._shapes.clear()


def _seeds(
    old: tuple[Rate, ...], ends: tuple[bytes, ...], new: tuple[Rate, ...]
) -> tuple[bytes, ...]:
    """Which former window each rate takes over: that of its period, or the longest."""
    by_period = {rate.per: end for rate, end in zip(old, ends, strict=True)}
    longest = by_period[max(by_period)]
    return tuple(by_period.get(rate.per, longest) for rate in new)
