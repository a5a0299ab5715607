"""The limiter: the one room that knows windows, store, queues and clock.

How a call goes: if nobody waits for its key and the store grants its cost, it passes at once.
Otherwise it gets a place in the queue of its key (`queue.py`, where it is let in), or is refused.
"""

import functools
import inspect
from collections.abc import Callable, Coroutine, Hashable
from math import inf
from threading import get_ident
from types import EllipsisType
from typing import Any, Final, ParamSpec, TypeVar, cast

from aiolimit.arguments import check_cost, check_count, check_limit, check_wait
from aiolimit.clock import Clock, check_clock, steady_time
from aiolimit.errors import CostTooHigh, QueueFull, RateLimited, Reason
from aiolimit.memory import OVERFLOW, Limits, Look, MemoryStore
from aiolimit.permit import Permit
from aiolimit.queue import Queues, Waiter
from aiolimit.rate import UNLIMITED, Limit, Rate
from aiolimit.report import Explanation, Quota, Statistics
from aiolimit.sweeper import Sweeper
from aiolimit.window import Window

__all__ = ["Limiter"]

P = ParamSpec("P")
T = TypeVar("T")

_ONE: Final = 1
_REASONS: Final[tuple[Reason, ...]] = (
    "quota",
    "timeout",
    "queue_full",
    "cost_too_high",
    "overload",
)


class Limiter:
    """Limits how much may be done in a time, for each key by itself.

    ```python
    limiter = Limiter("100/s", "2000/min", name="search")

    async with limiter.acquire("user:42"):
        ...
    ```

    rates: one or more, as `Rate(limit, per=seconds)` or text such as "100/s"; a call passes when
        all of them agree, and is charged to all of them or to none.
    name: what it is called in messages and metrics.
    sub_windows: how finely the window slides, 1 or more; at saturation at least N / (N + 1) of
        the limit is used. None keeps every admission.
    burst: None lets the whole window be spent at once. A number, 1 or more, paces admissions at
        the lowest of the rates, at most that much cost ahead of it.
    max_wait: how many seconds a call may wait; None as long as it takes, 0 not at all.
    max_waiters: how many calls may wait at once, over all keys; None for any number.
    max_keys: how many keys are kept apart, 1 or more; those past it share one window.
    clock: the time and a timer; `aiolimit.testing.FakeClock` in tests.

    A limiter counts for one process and one event loop at a time. Keys are any hashable value.
    Raises `ValueError` or `TypeError` here for what would not work later.
    """

    __slots__ = (
        "__weakref__",
        "_clock",
        "_completed",
        "_entered",
        "_lane",
        "_lane_limit",
        "_max_wait",
        "_max_waiters",
        "_passed",
        "_queues",
        "_rejected",
        "_store",
        "_sweeper",
        "_time",
        "_waiting",
        "name",
    )

    def __init__(
        self,
        *rates: Rate | str,
        name: str = "default",
        sub_windows: int | None = 32,
        burst: float | None = None,
        max_wait: float | None = None,
        max_waiters: int | None = None,
        max_keys: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"name must be text that is not empty, not {name!r}")
        if burst is not None and (burst := check_limit(burst, "burst")) < 1:
            raise ValueError(f"burst must be 1 or more, or None, not {burst!r}")
        self.name = name
        self._max_wait = check_wait(max_wait)
        self._max_waiters = check_count(max_waiters, "max_waiters", 0)
        self._store = MemoryStore(
            _check_rates(rates),
            sub_windows=check_count(sub_windows, "sub_windows", 1),
            burst=burst,
            max_keys=check_count(max_keys, "max_keys", 1),
        )
        self._clock = check_clock(clock)
        self._time = steady_time(self._clock)
        self._waiting = Queues(
            name, self._store, self._clock, self._time, self._refuse_waiter, self._set_lane
        )
        self._queues = self._waiting.by_key
        self._sweeper = Sweeper(self._store, self._clock, self._time)
        self._store.on_new_key = self._sweeper.key_came
        # A call is counted where that costs least: when it is entered, or passes without.
        self._entered = self._passed = self._completed = 0
        self._rejected: dict[Reason, int] = dict.fromkeys(_REASONS, 0)
        self._use_rates()

    def acquire(
        self,
        key: Hashable = "",
        cost: float = 1,
        # Meant as keywords; a bare `*` here would cost every call 4 % (CPython 3.11 to 3.13 take
        # a slower way into functions that have keyword-only arguments).
        max_wait: float | None | EllipsisType = ...,
        limit: Limit | tuple[Limit, ...] | None = None,
    ) -> Permit:
        """Ask to pass: `async with` it or `await` it, once; calls of one key pass in order.

        cost: any finite number from 0 up; 0 passes at once and is charged nothing.
        max_wait: seconds, in place of the limiter's.
        limit: in place of the limiter's limit for this call, a tuple if it has several rates.
            0 denies, `UNLIMITED` passes and is charged nothing.

        When awaited or entered it raises `RateLimited` if it would have to wait longer than it
        may (at once: it never sleeps in vain), `QueueFull`, or `CostTooHigh`, and `ValueError`
        or `TypeError` for arguments out of range.
        """
        permit = Permit()
        permit._limiter = self
        permit.key = key
        permit.cost = cost
        permit._max_wait = max_wait
        permit._limit = limit
        permit._at = None
        return permit

    def try_acquire(
        self,
        key: Hashable = "",
        cost: float = 1,
        limit: Limit | tuple[Limit, ...] | None = None,
    ) -> bool:
        """Pass at once, or not: never waits, and does not overtake those who do."""
        if limit is None and cost is _ONE:
            window = self._lane.get(key)
            if window is not None and window.join(self._time(), self._lane_limit):
                self._passed += 1
                return True
        cost = check_cost(cost)
        limits = self._limits_of(limit)
        if not self._fits(cost, limits):
            self._rejected["cost_too_high"] += 1
            return False
        _, wait = self._take(key, cost, limits, self._time())
        if wait is None:
            self._passed += 1
            return True
        self._rejected["quota"] += 1
        return False

    def peek(
        self,
        key: Hashable = "",
        cost: float = 1,
        *,
        limit: Limit | tuple[Limit, ...] | None = None,
    ) -> Quota:
        """What the key has left, and when a call of this cost would pass. Changes nothing.

        Of several rates it tells of the one that binds. Callers who wait are not counted in;
        `explain` tells of them.
        """
        cost = check_cost(cost)
        limits = self._limits_of(limit)
        rate, applied, look = self._binding(key, cost, limits)
        return Quota(
            rate=rate,
            limit=UNLIMITED if applied is None else applied,
            remaining=look.remaining,
            retry_after=look.retry_after if self._fits(cost, limits) else inf,
            reset_after=look.reset_after,
        )

    def update(self, *rates: Rate | str) -> None:
        """Use other rates, from the next decision on and for those who wait already.

        What is charged stays charged. A waiter whose cost is above a new limit fails at once,
        and so does one whose deadline cannot be met any more. Where the number of rates
        changes, waiters that came with limits of their own fall under the new ones.
        """
        checked = _check_rates(rates)
        self._waiting.check_loop(to_serve=True)
        self._store.change(checked)
        self._use_rates()
        for home in tuple(self._queues):
            self._waiting.review(home, self._fits)
            self._waiting.serve(home)

    def reset(self, key: Hashable | None = None) -> None:
        """Forget what one key has used, or all of them. Who waits for it goes as far as it can.

        A key that shares the overflow window (see `max_keys`) is forgotten only with all.
        """
        self._waiting.check_loop(to_serve=True)
        if key is None:
            self._store.clear()
        else:
            self._store.forget(key)
        for home in tuple(self._queues) if key is None else (key,):
            self._waiting.serve(home)

    def statistics(self) -> Statistics:
        """The counts since the limiter was made, and what it holds now."""
        return Statistics(
            admitted=self._entered + self._passed,
            completed=self._completed,
            in_flight=self._entered - self._completed,
            rejected=dict(self._rejected),
            cancelled=self._waiting.cancelled,
            waiting=self._waiting.waiting,
            keys=len(self._store),
            evicted=self._store.evicted,
        )

    def explain(self, key: Hashable = "") -> Explanation:
        """Why a call of cost 1 for this key would pass now, or wait; `str()` it to read it."""
        limits = self._waiting.limits
        rate, _, look = self._binding(key, 1, limits)
        queue = self._queues.get(self._home(key, self._time()))
        retry_after = look.retry_after
        if queue is not None:
            retry_after = self._waiting.behind(queue, 1, limits, self._time())
        return Explanation(
            limiter=self.name,
            key=key,
            rates=self._store.rates,
            binding=look.binding if queue is None else "queue",
            rate=rate,
            remaining=look.remaining,
            waiting=0 if queue is None else len(queue),
            retry_after=retry_after if self._fits(1, limits) else inf,
        )

    def limited(
        self,
        key: Hashable | Callable[..., Hashable] = "",
        cost: float | Callable[..., float] = 1,
        *,
        max_wait: float | None | EllipsisType = ...,
    ) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
        """Decorate an async function: each call of it runs inside `acquire`.

        `key` and `cost` are values, or functions of the call's own arguments.
        """

        def decorate(
            function: Callable[P, Coroutine[Any, Any, T]],
        ) -> Callable[P, Coroutine[Any, Any, T]]:
            if not inspect.iscoroutinefunction(function):
                raise TypeError(f"limited() decorates async functions, not {function!r}")

            @functools.wraps(function)
            async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
                its_key = key(*args, **kwargs) if callable(key) else key
                its_cost = cost(*args, **kwargs) if callable(cost) else cost
                async with self.acquire(its_key, its_cost, max_wait=max_wait):
                    return await function(*args, **kwargs)

            return wrapper

        return decorate

    def __len__(self) -> int:
        return len(self._store)

    def __bool__(self) -> bool:
        return True  # a limiter without keys is a limiter all the same

    def __repr__(self) -> str:
        rates = " and ".join(str(rate) for rate in self._store.rates)
        return f"<Limiter {self.name}: {rates}, {len(self)} keys, {self._waiting.waiting} waiting>"

    # What a permit calls.

    def _request(self, permit: Permit) -> Waiter | None:
        """Let the permit pass, or give it a place among those who wait, or raise."""
        if permit._at is not None:
            raise RuntimeError(f"{permit!r} was asked for before; acquire a new one")
        cost = permit.cost = check_cost(permit.cost)
        limits = self._limits_of(permit._limit)
        max_wait = permit._max_wait
        max_wait = self._max_wait if max_wait is ... else check_wait(max_wait)
        if not self._fits(cost, limits):
            raise self._refuse(CostTooHigh, "cost_too_high", permit.key, cost, limits, None)
        now = self._time()
        home, wait = self._take(permit.key, cost, limits, now)
        if home is not permit.key:
            permit._home = home
        if wait is None:
            permit._at = now
            return None
        full = self._max_waiters is not None and self._waiting.waiting >= self._max_waiters
        if max_wait is not None or full:
            queue = self._queues.get(home)
            if queue is not None:
                wait = self._waiting.behind(queue, cost, limits, now)
            if max_wait is not None and wait > max_wait:
                reason: Reason = "timeout" if max_wait else "quota"
                raise self._refuse(RateLimited, reason, permit.key, cost, limits, wait)
            if full:
                raise self._refuse(QueueFull, "queue_full", permit.key, cost, limits, wait)
        permit._at = -inf  # asked for, and not granted yet
        own_limits = None if permit._limit is None else limits
        deadline = inf if max_wait is None else now + max_wait
        return self._waiting.add(home, permit.key, cost, own_limits, now, wait, deadline)

    async def _wait(self, permit: Permit, waiter: Waiter) -> None:
        asked = self._time()
        permit._at = await self._waiting.wait(waiter)
        permit._waited = permit._at - asked

    def _adjust(self, permit: Permit, cost: float) -> None:
        """Charge or give back the difference between what the permit cost and what it costs."""
        if permit._at is None or permit._at == -inf:
            raise RuntimeError(f"{permit!r} is not granted: await or enter it first")
        limits = self._limits_of(permit._limit, strict=False)
        waiting = self._waiting
        if get_ident() != waiting.thread or (self._queues and not waiting.is_running()):
            waiting.check_loop(to_serve=True)
        home = getattr(permit, "_home", permit.key)
        now = self._time()
        more = cost - permit.cost
        permit.cost = cost
        later = getattr(permit, "_later", [])
        if more > 0:
            no_ceiling = tuple(None if limit is None else inf for limit in limits)
            self._store.take(home, more, more, no_ceiling, now)
            permit._later = [*later, (now, more)]
        while more < 0:
            # The latest charge first: it has the longest to go.
            at, charged = later.pop() if later else (permit._at, inf)
            part = min(charged, -more)
            self._store.take(home, -part, 0, limits, now, at)
            if part < charged < inf:
                later.append((at, charged - part))
            more += part
        waiting.serve(home)

    # What is shared.

    def _take(
        self, key: Hashable, cost: float, limits: Limits, now: float
    ) -> tuple[Hashable, float | None]:
        """Charge the cost to the key unless others wait for it or it does not fit.

        Returns where it is charged, and None or the least seconds it would have to wait.
        """
        waiting = self._waiting
        if get_ident() != waiting.thread or (self._queues and not waiting.is_running()):
            waiting.check_loop()
        home = self._home(key, now)
        if cost == 0 or (limits[0] is None and not any(limit is not None for limit in limits)):
            return home, None
        queue = self._queues.get(home)
        if queue is not None and queue.due <= now and waiting.is_running():
            waiting.serve(home)  # the timer is late; those who wait come first all the same
            queue = self._queues.get(home)
        if queue is not None:
            return home, queue.due - now
        granted, wait = self._store.take(home, cost, cost, limits, now)
        return home, None if granted else wait

    def _home(self, key: Hashable, now: float) -> Hashable:
        """The key itself, or the overflow that the keys past `max_keys` share.

        While callers wait in the overflow, unknown keys go there too: one of those who wait may
        be of the same key.
        """
        if self._store.max_keys is None or key in self._queues or key in self._store:
            return key
        return OVERFLOW if OVERFLOW in self._queues else self._store.home(key, now)

    def _limits_of(self, limit: Limit | tuple[Limit, ...] | None, *, strict: bool = True) -> Limits:
        """The limits of a call, one for each rate: its own, or those of the limiter."""
        if limit is None:
            return self._waiting.limits
        if limit is UNLIMITED:
            return (None,) * len(self._store.rates)
        given = limit if isinstance(limit, tuple) else (limit,)
        if len(given) != len(self._store.rates):
            if not strict:  # the number of rates has changed since it was asked
                return self._waiting.limits
            raise ValueError(
                f"limit must be UNLIMITED or have one number for each of the "
                f"{len(self._store.rates)} rates of {self.name!r}, not {limit!r}"
            )
        return tuple(None if one is UNLIMITED else check_limit(one) for one in given)

    def _fits(self, cost: float, limits: Limits) -> bool:
        """Whether the cost could pass if nothing else did: a limit of 0 lets nothing pass."""
        burst = self._store.burst
        for limit in limits:
            if limit is not None:
                if cost > limit or limit == 0 or (burst is not None and cost > burst):
                    return False
        return True

    def _binding(
        self, key: Hashable, cost: float, limits: Limits
    ) -> tuple[Rate, float | None, Look]:
        """Of the rates that apply the one to wait longest for, or with the least left."""
        looks = self._store.look(key, cost, limits, self._time())
        found = [
            (rate, limit, look)
            for rate, limit, look in zip(self._store.rates, limits, looks, strict=True)
            if look is not None
        ]
        if not found:
            return self._store.rates[0], None, Look(inf, 0.0, 0.0, "nothing")
        return max(found, key=lambda each: (each[2].retry_after, -each[2].remaining))

    def _refuse(
        self,
        error: type[RateLimited],
        reason: Reason,
        key: Hashable,
        cost: float,
        limits: Limits,
        wait: float | None,
    ) -> RateLimited:
        """Count a refusal and make the error that tells of it."""
        self._rejected[reason] += 1
        rate, limit, look = self._binding(key, cost, limits)
        limit = inf if limit is None else limit
        burst = self._store.burst
        if wait is None:
            above = f"the limit of {limit:g} in {rate.per:g} s"
            if burst is not None and cost > burst and limit >= cost:
                above, limit = f"the burst of {burst:g}", burst
            why = f"cost {cost:g} for {key!r} is above {above} and can never pass"
        else:
            why = f"no room for cost {cost:g} for {key!r}: {look.remaining:g} of {limit:g} left"
            if reason == "queue_full":
                why = f"{self._waiting.waiting} callers wait already, as many as may"
            why += f"; retry after {wait:.3g} s"
        return error(
            f"{self.name}: {why}",
            limiter=self.name,
            key=key,
            rate=rate,
            limit=limit,
            remaining=look.remaining,
            retry_after=wait,
            reset_after=look.reset_after,
            reason=reason,
        )

    def _refuse_waiter(
        self, error: type[RateLimited], reason: Reason, waiter: Waiter
    ) -> RateLimited:
        """The same, for one who waited."""
        limits = waiter.limits or self._waiting.limits
        wait = None
        if reason != "cost_too_high":
            now = self._time()
            wait = self._waiting.behind(waiter.queue, waiter.cost, limits, now)
        return self._refuse(error, reason, waiter.key, waiter.cost, limits, wait)

    def _use_rates(self) -> None:
        """Take over the rates of the store."""
        self._waiting.limits = tuple(rate.limit for rate in self._store.rates)
        self._lane_limit = self._store.rates[0].limit
        self._set_lane()

    def _set_lane(self) -> None:
        """Open or close the fast lane: the windows that a cost of 1 may join without more ado.

        It is open under one rate with a limit above `sub_windows` (up to that every admission
        is kept by itself), without a burst, and while nobody waits. Closed, it holds no keys.
        """
        store = self._store
        self._lane: dict[Hashable, Window] = {}
        if len(store.rates) == 1 and store.burst is None and store.sub_windows is not None:
            if self._lane_limit > store.sub_windows and not self._queues:
                self._lane = cast(dict[Hashable, Window], store.entries)


def _check_rates(rates: tuple[Rate | str, ...]) -> tuple[Rate, ...]:
    if not rates:
        raise ValueError('a limiter needs at least one rate, such as Limiter("100/s")')
    return tuple(Rate.of(rate) for rate in rates)
