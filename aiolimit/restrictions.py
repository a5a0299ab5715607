"""A store seen through what others have said of its keys: the same questions, less lets through.

Most limiters never need it. It stands in the way only once something was said of a key, and the
fast lane is closed only while something holds.
"""

from collections.abc import Callable, Hashable
from math import inf
from typing import Final

from aiolimit.counts import Counts, Limits, Look
from aiolimit.eviction import Eviction
from aiolimit.memory import MemoryStore
from aiolimit.restriction import Restriction

__all__ = ["Restrictions"]

_SOON: Final = 1.0  # seconds after which to look for the first time what is over


class Restrictions:
    """The restrictions of one limiter's keys, between its decisions and its store.

    on_change: called when there is one, or there is none any more.
    reconsider: called with a key of which something else holds now.
    """

    def __init__(
        self,
        store: MemoryStore,
        quota: Counts,
        time: Callable[[], float],
        on_change: Callable[[], object],
        reconsider: Callable[[Hashable], object],
    ) -> None:
        self.by_key: dict[Hashable, Restriction] = {}
        self._eviction = Eviction[Restriction](lambda _key, one, now: one.over_at() - now)
        self.on_new_key: Callable[[], object] = lambda: None
        self.longest: float = _SOON
        self._store = store
        self._quota = quota
        self._time = time
        self._on_change = on_change
        self._reconsider = reconsider

    def hold(self, key: Hashable, seconds: float, stated: float = 0.0) -> None:
        """Let nothing of the key pass for so long, of what was asked for; see `Restriction`."""
        now = self._time()
        _, period = self._pace(tuple(rate.limit for rate in self._store.rates))
        stated_until = now + stated if stated > seconds else -inf
        self._of(key).hold(now, now + seconds, period, stated_until)
        self._reconsider(key)

    def restrict(
        self,
        key: Hashable,
        remaining: float,
        seconds: float,
        name: str,
        refill: float,
        asked_at: float = inf,
    ) -> None:
        """Let at most so much of the key pass in that time; see `Restriction.ceiling`."""
        now = self._time()
        self._of(key).ceiling(name, remaining, now, now + seconds, refill, asked_at)
        self._reconsider(key)

    def lift(self, key: Hashable, name: str, asked_at: float) -> None:
        """There is no restriction of that name, says an answer to a question of that time."""
        if (one := self.by_key.get(key)) is not None:
            one.lift(name, asked_at)
            self._reconsider(key)

    def take(
        self,
        key: Hashable,
        want: float,
        least: float,
        limits: Limits,
        now: float,
        ahead: float = 0,
    ) -> tuple[float, float]:
        """As `MemoryStore.take`."""
        one = self.by_key.get(key)
        if one is None:
            return self._quota.take(key, want, least, limits, now, ahead=ahead)
        pace, _ = self._pace(limits)
        held = one.wait(least, now, pace, ahead)
        if held:
            want = 0
        granted, wait = self._quota.take(key, want, least, limits, now, ahead=ahead)
        if granted:
            one.take(granted, now, pace)
        return granted, max(wait, held)

    def charge(self, key: Hashable, cost: float, limits: Limits, now: float) -> float:
        """As `MemoryStore.charge`."""
        at = self._quota.charge(key, cost, limits, now)
        if (one := self.by_key.get(key)) is not None:
            one.take(cost, now, self._pace(limits)[0])
        return at

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
        self._quota.give_back(key, cost, limits, layout, now, at)
        if (one := self.by_key.get(key)) is not None:
            one.give_back(cost, at)

    def look(self, key: Hashable, cost: float, limits: Limits, now: float) -> list[Look | None]:
        """As `MemoryStore.look`; "hold" binds where the limiter itself would let the cost pass."""
        looks = self._quota.look(key, cost, limits, now)
        one = self.by_key.get(key)
        if one is None:
            return looks
        pace, _ = self._pace(limits)
        held, more, left = one.wait(cost, now, pace), one.wait(1, now, pace), max(0, one.left(now))
        return [
            look
            and Look(
                min(look.remaining, left),
                max(look.retry_after, held),
                max(look.reset_after, more),
                max(look.more_after, more) if left <= look.remaining else look.more_after,
                "hold" if held > look.retry_after else look.binding,
            )
            for look in looks
        ]

    def forget(self, key: Hashable | None) -> None:
        """Forget what was said of one key, or of all."""
        if key is None:
            self.by_key.clear()
        else:
            self.by_key.pop(key, None)
        self._on_change()

    @property
    def layout(self) -> int:
        """As `MemoryStore.layout`."""
        return self._store.layout

    def evict(self, now: float, most: int) -> float | None:
        """Make a step of a pass over the keys, as `MemoryStore.evict` does."""
        _, again = self._eviction.step(self.by_key, now, most, self.longest)
        if again is None:
            self._on_change()
        return again

    def _of(self, key: Hashable) -> Restriction:
        one = self.by_key.get(key)
        if one is None:
            self.on_new_key()
            one = self.by_key[key] = Restriction()
            self._on_change()
        return one

    def _pace(self, limits: Limits) -> tuple[float, float]:
        """Cost a second of the fastest of the rates, and its period."""
        paces = [
            (limit / rate.per, rate.per)
            for rate, limit in zip(self._store.rates, limits, strict=True)
            if limit is not None
        ]
        return max(paces, default=(inf, 0.0))
