"""A store seen through warm-up: the same questions, answered under limits that still rise.

What passes under a limit that rises is true from some moment on, as windows only empty and limits
only grow. So a wait is exact, too: it is the first moment at which the limit has risen to a level
at which the window has emptied enough, and is found by halving between the levels.

One ramp serves the whole limiter, or each key has its own (`WarmUp.per_key`). Where the ramp
paces, each key has a pacer in paced time (`Ramp.paced`), in which the pace is constant.
"""

from collections.abc import Callable, Hashable, Mapping
from math import ceil, floor
from typing import Final

from aiolimit.counts import Limits, Look
from aiolimit.eviction import Eviction
from aiolimit.memory import OVERFLOW, MemoryStore
from aiolimit.pacer import Pacer
from aiolimit.warmup import PACE_BURST, Ramp, WarmUp, bent

__all__ = ["Ramps"]

_ROUNDING: Final = 1e-9  # seconds by which a sum of times may be off


class _Key:
    """The ramp of a key, its own or the limiter's, and how far it is ahead of the pace."""

    __slots__ = ("pacer", "ramp")

    def __init__(self, ramp: Ramp) -> None:
        self.ramp = ramp
        self.pacer = Pacer()


class Ramps:
    """The warm-up of one limiter, between its decisions and its store.

    on_change: called when the limiter has become warm, or is so no more.
    """

    def __init__(
        self, store: MemoryStore, warm_up: WarmUp, now: float, on_change: Callable[[], object]
    ) -> None:
        self.warm_up = warm_up
        #: Whether all keys are warm for sure, so that a fast lane may skip the ramp.
        self.is_warm = False
        #: The ramp of the limiter; with `per_key` that of the keys past `max_keys`.
        self.ramp = Ramp(now)
        self.on_new_key: Callable[[], object] = lambda: None
        #: Who waits, by key: while anyone does, no ramp is idle, or with `per_key` not the key's.
        self.waiters: Mapping[Hashable, object] = {}
        self._store = store
        self._on_change = on_change
        self._has_begun = False
        self._keys: dict[Hashable, _Key] = {}
        self._eviction = Eviction(self._empty_after)
        self.use_rates()

    def use_rates(self) -> None:
        """Take over the periods of the store's rates."""
        self.timing = self.warm_up.timing(self._store.longest)
        self._paced = tuple(self.warm_up.paces(rate.per) for rate in self._store.rates)

    def attempt(self, key: Hashable, now: float) -> float:
        """Note that somebody wants to pass, whatever comes of it; returns how warm the key is."""
        if not self._has_begun:
            self._has_begun = True
            self.ramp.at = now
        ramp = self._of(key, now).ramp
        ramp.waits = self._has_waiter(key)
        warmth = ramp.attempt(now, self.timing)
        is_warm = warmth >= 1 and not self.warm_up.per_key
        if is_warm is not self.is_warm:
            self.is_warm = is_warm
            if is_warm:
                self._keys.clear()
            self._on_change()
        return warmth

    def warmth(self, key: Hashable, now: float) -> float:
        """How warm the key is, 0 to 1, for an attempt that comes now."""
        ramp = self._known(key, now).ramp
        ramp.waits = self._has_waiter(key)
        return ramp.warmth_at(now, self.timing)

    def in_force(self, key: Hashable, limits: Limits, now: float) -> Limits:
        """What those limits are for the key now."""
        warmth = self.warmth(key, now)
        start = self.timing.start
        return tuple(None if one is None else bent(one, warmth, start) for one in limits)

    def take(
        self,
        key: Hashable,
        want: float,
        least: float,
        limits: Limits,
        now: float,
        ahead: float = 0,
    ) -> tuple[float, float]:
        """As `MemoryStore.take`, under the limits as they rise."""
        warmth = self.attempt(key, now) if want else self.warmth(key, now)
        one = self._of(key, now) if want else self._known(key, now)
        if warmth >= 1:
            return self._store.take(key, want, least, limits, now, ahead=ahead)
        wait = self._wait_for_pace(one, least, limits, now, ahead)
        if want and not wait:
            in_force = self.in_force(key, limits, now)
            granted, _ = self._store.take(key, want, least, in_force, now)
            if granted:
                self._charge(one, granted, limits, now)
                return granted, 0.0
        for index, limit in enumerate(limits):
            if limit is not None:
                wait = max(wait, self._wait(key, least, limits, index, now, ahead))
        return 0, wait

    def charge(self, key: Hashable, cost: float, limits: Limits, now: float) -> float:
        """As `MemoryStore.charge`."""
        self._store.charge(key, cost, limits, now)
        self.spend(key, cost, limits, now)
        return now

    def spend(self, key: Hashable, cost: float, limits: Limits, now: float) -> None:
        """Charge the pace alone: the store knows already."""
        if self.warmth(key, now) < 1:
            self._charge(self._of(key, now), cost, limits, now)

    def give_back(
        self,
        key: Hashable,
        cost: float,
        limits: Limits,
        layout: int | None,
        now: float,
        at: float,
    ) -> None:
        """As `MemoryStore.give_back`."""
        self._store.give_back(key, cost, limits, layout, now, at)
        one = self._keys.get(key)
        if one is not None and (pace := self._pace(limits)):
            paced = one.ramp.paced_at(now, self.timing)
            # No more time of the pace can have gone by since than time did.
            one.pacer.give_back(cost, paced - max(0.0, now - at), paced, pace, pace)

    def look(self, key: Hashable, cost: float, limits: Limits, now: float) -> list[Look | None]:
        """As `MemoryStore.look`; "warm_up" binds where the whole limit would let the cost pass."""
        whole = self._store.look(key, cost, limits, now)
        if self.warmth(key, now) >= 1:
            return whole
        one = self._known(key, now)
        looks = self._store.look(key, cost, self.in_force(key, limits, now), now)
        pace, at_pace = self._pace(limits), self._wait_for_pace(one, cost, limits, now)
        for index, (at_whole, look) in enumerate(zip(whole, looks, strict=True)):
            if at_whole is None or look is None:
                continue
            wait = self._wait(key, cost, limits, index, now, 0)
            room = look.remaining
            if self._paced[index] and pace:
                paced = one.ramp.paced_at(now, self.timing)
                room = max(0, min(room, one.pacer.room(paced, pace, self._burst(pace, 0))))
                wait = max(wait, at_pace)
            binding = "warm_up" if wait > at_whole.retry_after else at_whole.binding
            more = self._more_after(key, one, room, limits, index, now)
            looks[index] = Look(room, wait, look.reset_after, more, binding)
        return looks

    def forget(self, key: Hashable | None) -> None:
        """Forget how far ahead of the pace a key is, or all are; what is warm stays warm."""
        for one in list(self._keys.values()) if key is None else [self._keys.get(key)]:
            if one is not None:
                one.pacer = Pacer()

    @property
    def layout(self) -> int:
        """As `MemoryStore.layout`."""
        return self._store.layout

    @property
    def longest(self) -> float:
        """Seconds after which an idle key is as good as unknown."""
        return self.timing.idle_after + self.timing.cool_down + PACE_BURST

    def evict(self, now: float, most: int) -> float | None:
        """Make a step of a pass over the keys, as `MemoryStore.evict` does."""
        return self._eviction.step(self._keys, now, most, self.longest)[1]

    def _has_waiter(self, key: Hashable) -> bool:
        return key in self.waiters if self.warm_up.per_key else bool(self.waiters)

    def _known(self, key: Hashable, now: float) -> _Key:
        """What there is for the key; what was never asked for has a cold ramp."""
        one = self._keys.get(key)
        if one is None:
            is_shared = not self.warm_up.per_key or key is OVERFLOW or self._is_full()
            one = _Key(self.ramp if is_shared and self._has_begun else Ramp(now))
        return one

    def _of(self, key: Hashable, now: float) -> _Key:
        """What there is for the key, made if need be."""
        one = self._keys.get(key)
        if one is not None:
            return one
        one = _Key(self.ramp)
        if self.warm_up.per_key and key is not OVERFLOW:
            if self._is_full():
                return one  # ramps outlive windows, so there may be too many of them
            one.ramp = Ramp(now)
        elif self.is_warm or not any(self._paced):
            return one
        self.on_new_key()
        self._keys[key] = one
        return one

    def _is_full(self) -> bool:
        most = self._store.max_keys
        return most is not None and len(self._keys) >= most

    def _pace(self, limits: Limits) -> float:
        """Cost a second, at full warmth, of the lowest of the rates that are paced; 0 if none."""
        paces = [
            limit / rate.per
            for rate, limit, paced in zip(self._store.rates, limits, self._paced, strict=True)
            if paced and limit is not None
        ]
        return min(paces, default=0.0)

    def _burst(self, pace: float, cost: float) -> float:
        """How far ahead a call may be; a cost above that passes where nothing is ahead."""
        return max(1.0, cost, PACE_BURST * pace * self.timing.start)

    def _charge(self, one: _Key, cost: float, limits: Limits, now: float) -> None:
        if pace := self._pace(limits):
            one.pacer.take(cost, one.ramp.paced_at(now, self.timing), pace)

    def _wait_for_pace(
        self, one: _Key, cost: float, limits: Limits, now: float, ahead: float = 0
    ) -> float:
        """Seconds until the pace lets the cost pass behind others, or until it is warm."""
        pace = self._pace(limits)
        if not pace:
            return 0.0
        timing = self.timing
        paced = one.ramp.paced_at(now, timing)
        wait = one.pacer.wait(ahead + cost, paced, pace, self._burst(pace, cost))
        if wait <= _ROUNDING:  # who has slept the wait must find it over
            return 0.0
        wait = one.ramp.wait_for_pace(paced + wait, now, timing)
        return min(wait, (1 - one.ramp.warmth_at(now, timing)) * timing.over)

    def _wait(
        self, key: Hashable, cost: float, limits: Limits, index: int, now: float, ahead: float
    ) -> float:
        """Seconds until one of the rates lets the cost pass behind others, as its limit rises."""
        limit = limits[index]
        if limit is None:
            return 0.0
        ramp, timing = self._known(key, now).ramp, self.timing

        def at_level(level: float) -> float:
            only = tuple(level if at == index else None for at in range(len(limits)))
            return self._store.take(key, 0, cost, only, now, ahead=ahead)[1]

        low, high = ramp.levels(limit, now, timing)
        low = lowest = min(max(low, ceil(cost)), high)
        # The lowest level that is reached no sooner than the window has emptied for it.
        while low < high:
            middle = (low + high) // 2
            if ramp.wait_for_limit(middle, limit, now, timing) >= at_level(middle):
                high = middle
            else:
                low = middle + 1
        level = min(low, limit)
        wait = max(ramp.wait_for_limit(level, limit, now, timing), at_level(level))
        return min(wait, at_level(low - 1)) if low > lowest else wait

    def _more_after(
        self, key: Hashable, one: _Key, room: float, limits: Limits, index: int, now: float
    ) -> float:
        """Seconds until one of the rates has a whole more than that room."""
        limit = limits[index]
        if limit is None or room >= limit:
            return 0.0
        whole = min(floor(room) + 1, limit)
        at_pace = self._wait_for_pace(one, whole, limits, now) if self._paced[index] else 0.0
        return max(at_pace, self._wait(key, whole, limits, index, now, 0))

    def _empty_after(self, key: Hashable, one: _Key, now: float) -> float:
        """Seconds until forgetting the key would change no decision."""
        if key in self.waiters:
            return self.longest
        left = 0.0
        if one.ramp is not self.ramp:
            left = one.ramp.at + self.timing.idle_after + self.timing.cool_down - now
        if one.pacer.ahead and (pace := self._pace(tuple(r.limit for r in self._store.rates))):
            paced = one.ramp.paced_at(now, self.timing)
            left = max(left, one.pacer.empty_after(paced, pace) / self.timing.start)
        return left
