"""How a key stands under each rate of a limiter, and the refusals that tell of it."""

from collections.abc import Callable, Hashable
from math import inf
from typing import Final

from aiolimit.counts import Counts, Limits, Look
from aiolimit.errors import RateLimited, Reason, shown
from aiolimit.memory import MemoryStore
from aiolimit.quota import Quota
from aiolimit.ramps import Ramps
from aiolimit.rate import UNLIMITED, Rate
from aiolimit.window import Window

__all__ = ["Standings"]

_NOT_UNDER: Final = Look(inf, 0.0, 0.0, 0.0, "nothing")  # a rate that does not apply

_Found = tuple[Rate, float | None, Look]


def _urgency(found: _Found) -> tuple[float, float]:
    return found[2].retry_after, -found[2].remaining


class Standings:
    """What one limiter tells of its keys. Changes nothing.

    quota: what is asked: the store, or what it is seen through.
    home: the key whose windows a key is charged to.
    """

    __slots__ = ("_home", "_max_waiters", "_name", "_ramps", "_store", "_time", "quota")

    def __init__(
        self,
        name: str,
        store: MemoryStore,
        ramps: Ramps | None,
        time: Callable[[], float],
        home: Callable[[Hashable, float], Hashable],
        max_waiters: int | None,
    ) -> None:
        self.quota: Counts = ramps or store
        self._name = name
        self._store = store
        self._ramps = ramps
        self._time = time
        self._home = home
        self._max_waiters = max_waiters

    def looks(self, key: Hashable, cost: float, limits: Limits) -> list[_Found]:
        """How the key stands under each rate, with the limit that is in force."""
        now = self._time()
        if self.quota is not self._store:
            key = self._home(key, now)
        looks = self.quota.look(key, cost, limits, now)
        if self._ramps is not None:
            limits = self._ramps.in_force(key, limits, now)
        return [
            (rate, limit, look or _NOT_UNDER)
            for rate, limit, look in zip(self._store.rates, limits, looks, strict=True)
        ]

    def binding(self, key: Hashable, cost: float, limits: Limits) -> _Found:
        """Of the rates that apply the one to wait longest for, or with the least left."""
        return max(self.looks(key, cost, limits), key=_urgency)

    def tell(self, key: Hashable, cost: float, limits: Limits) -> Quota:
        """What is told of the rate that binds: how it stands, and when the cost would pass."""
        rate, applied, look = self.binding(key, cost, limits)
        return Quota(
            rate=rate,
            limit=UNLIMITED if applied is None else applied,
            remaining=look.remaining,
            retry_after=look.retry_after if self.fits(cost, limits) else None,
            reset_after=look.reset_after,
            more_after=look.more_after,
        )

    def left(self, key: Hashable, limits: Limits, now: float) -> list[tuple[float, float] | None]:
        """What is left of each rate, and the seconds until there is more: each response tells."""
        if self.quota is self._store:
            return self._store.left(key, limits, now)
        looks = self.quota.look(self._home(key, now), 0, limits, now)
        return [look and (look.remaining, look.more_after) for look in looks]

    def left_of_its_own(self, key: Hashable, limits: Limits) -> list[tuple[Rate, float]]:
        """What is left of each rate, whatever was said of the key from outside."""
        now = self._time()
        left = self._store.left(self._home(key, now), limits, now)
        return [
            (rate, state[0])
            for rate, state in zip(self._store.rates, left, strict=True)
            if state is not None
        ]

    def full(self, key: Hashable, now: float) -> tuple[float, list[tuple[float, float]]] | None:
        """How a key stands that has no room for a cost of 1, and the seconds until it has.

        None where it has room, or where it takes more than a glance to tell. A server that is
        asked too often answers this most of the time, so it makes no error of it.
        """
        if self.quota is not self._store:
            return None
        entry = self._store.entries.get(key)
        rates = self._store.rates
        if isinstance(entry, Window):
            rate = rates[0]
            limit, period = rate.limit, rate.per
            left, more = entry.left(now, limit, period)
            if left >= 1 or limit < 1:
                return None
            freed = entry.total if entry.older is None else entry.older[entry.first + 1]
            wait = more if limit - entry.total + freed >= 1 else entry.wait(1, now, limit, period)
            return wait, [(left, more)]
        if entry is None or entry.pacer is not None or any(rate.limit < 1 for rate in rates):
            return None  # where nothing will ever pass, it takes an error to tell
        standing: list[tuple[float, float]] = []
        wait = 0.0
        for rate, window in zip(rates, entry.windows, strict=True):
            state = window.left(now, rate.limit, rate.per)
            standing.append(state)
            if state[0] < 1:
                wait = max(wait, window.wait(1, now, rate.limit, rate.per))
        return (wait, standing) if wait else None

    def fits(self, cost: float, limits: Limits) -> bool:
        """Whether the cost could pass if nothing else did: a limit of 0 lets nothing pass."""
        burst = self._store.burst
        for limit in limits:
            if limit is not None:
                if cost > limit or limit == 0 or (burst is not None and cost > burst):
                    return False
        return True

    def refusal(
        self,
        error: type[RateLimited],
        reason: Reason,
        key: Hashable,
        cost: float,
        limits: Limits,
        wait: float | None,
    ) -> RateLimited:
        """The error that tells of a refusal."""
        looks = self.looks(key, cost, limits)
        rate, applied, look = max(looks, key=_urgency)
        limit = inf if applied is None else applied
        burst = self._store.burst
        if wait is None:
            above = f"the limit of {limit:g} in {rate.per:g} s"
            if burst is not None and cost > burst and limit >= cost:
                above, limit = f"the burst of {burst:g}", burst
            why = f"cost {cost:g} for {shown(key)} is above {above} and can never pass"
        else:
            left = f"{look.remaining:g} of {limit:g} left"
            if look.binding == "hold":
                left = "a server has asked to wait"
            why = f"no room for cost {cost:g} for {shown(key)}: {left}; retry after {wait:.3g} s"
            if reason == "timeout":
                why = f"{shown(key)} would wait {wait:.3g} s, longer than it may; {left}"
            elif reason == "queue_full":
                why = f"max_waiters={self._max_waiters} wait already; retry after {wait:.3g} s"
        return error(
            f"{self._name}: {why}",
            limiter=self._name,
            key=key,
            rate=rate,
            limit=limit,
            remaining=look.remaining,
            retry_after=wait,
            reset_after=look.reset_after,
            reason=reason,
            quotas=lambda: tuple(
                self._quota_of(found, asked, cost)
                for found, asked in zip(looks, limits, strict=True)
            ),
        )

    def _quota_of(self, found: _Found, asked: float | None, cost: float) -> Quota:
        """What is told of one rate, under the limit that was asked for."""
        rate, limit, look = found
        if limit is None or asked is None:
            return Quota(rate, UNLIMITED, look.remaining, 0.0, 0.0)
        if asked != rate.limit:
            rate = Rate(asked if asked >= 1 else 0, rate.per)  # below 1, nothing whole passes
        after = look.retry_after if self.fits(cost, (asked,)) else None
        return Quota(rate, limit, look.remaining, after, look.reset_after, look.more_after)
