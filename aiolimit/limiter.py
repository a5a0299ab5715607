"""The limiter: the public face, which checks what it is given, counts, and hands on."""

import functools
from collections.abc import Callable, Coroutine, Hashable
from types import EllipsisType
from typing import Any, Final, ParamSpec, TypeVar, cast

from aiolimit.admission import Admission
from aiolimit.arguments import check_cost, check_count, check_limit, check_name, check_wait
from aiolimit.clock import Clock, check_clock
from aiolimit.errors import RateLimited
from aiolimit.explaining import explain
from aiolimit.lane import Lane
from aiolimit.limited import limited
from aiolimit.load.controller import LoadController, check_load
from aiolimit.load.gate import Gate
from aiolimit.memory import MemoryStore
from aiolimit.permit import UNUSUAL, Permit, bent, new_permit
from aiolimit.quota import Quota
from aiolimit.rate import Limit, Rate, check_rates
from aiolimit.report import Explanation, Statistics
from aiolimit.shadow import ShadowAdmission
from aiolimit.store import Store, check_store
from aiolimit.warmup import Ramp, WarmUp
from aiolimit.watcher import Watcher

__all__ = ["Limiter"]

P = ParamSpec("P")
T = TypeVar("T")

_ONE: Final = 1


class Limiter(Lane):
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
    warm_up: how the limits begin lower and rise; None begins with the whole limits.
    load: a running `LoadController`, which several limiters may share; it refuses what this
        process cannot do in time.
    shadow: decide and count, but refuse nobody and let nobody wait: so a limit can be tried on
        live traffic before it bites (`Statistics.shadow_rejected`).
    store: where the counts live, to be shared by processes: an `aiolimit.redis.RedisStore`. None
        keeps them in this process.
    clock: the time and a timer; `aiolimit.testing.FakeClock` in tests.

    A limiter counts for one process and one event loop at a time. Used from two that run at once it
    raises `RuntimeError`, at the latest when the newest entry of a window closes (the fast lane
    does not look). Keys are any hashable value.
    Raises `ValueError` or `TypeError` here for what would not work later.
    """

    __slots__ = (
        "__weakref__",
        "_completed",
        "_gate",
        "_queues",
        "_ramp",
        "_watchers",
        "load",
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
        warm_up: WarmUp | None = None,
        load: LoadController | None = None,
        shadow: bool = False,
        store: Store | None = None,
        clock: Clock | None = None,
    ) -> None:
        if burst is not None and (burst := check_limit(burst, "burst")) < 1:
            raise ValueError(f"burst must be 1 or more, or None, not {burst!r}")
        if warm_up is not None and not isinstance(warm_up, WarmUp):
            raise TypeError(f"warm_up must be a WarmUp or None, not {warm_up!r}")
        if not isinstance(shadow, bool):
            raise TypeError(f"shadow must be True or False, not {shadow!r}")
        checked_clock = check_clock(clock)
        check_load(load, checked_clock)
        self.name: str = check_name(name)
        self._store = MemoryStore(
            check_rates(rates),
            sub_windows=check_count(sub_windows, "sub_windows", 1),
            burst=burst,
            max_keys=check_count(max_keys, "max_keys", 1),
        )
        decide: Callable[..., Admission] = ShadowAdmission if shadow else Admission
        if store is not None:
            decide = check_store(store).admission(name, shadow=shadow)
        self._admission = decide(
            name,
            self._store,
            checked_clock,
            check_wait(max_wait),
            max_waiters=check_count(max_waiters, "max_waiters", 0),
            on_change=self._set_lane,
            warm_up=warm_up,
            load=load,
        )
        self.load: LoadController | None = load
        ramps = self._admission.ramps
        # What a bent permit looks at; where there is nothing to, what lets everyone in.
        self._ramp = Ramp(0.0) if ramps is None else ramps.ramp
        self._gate = self._admission.gate or Gate.always_open(checked_clock)
        if ramps is not None or load is not None:
            self.__class__ = cast(Any, bent(type(self), Limiter.acquire))
        #: Who is told when nobody holds this limiter any more: whoever keeps its counts.
        self._watchers: tuple[Watcher, ...] = ()
        if load is not None:
            load.watch(self)
            self._watchers = (load,)
        self._time = self._admission.time
        self._queues = self._admission.queues
        # A call is counted where that costs least: when it is entered, or passes without.
        self._entered = self._passed = self._completed = self._near = 0
        self._set_lane()

    def __del__(self) -> None:
        for watcher in getattr(self, "_watchers", ()):  # none, where it could not be made
            watcher.depart(self)

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

        Python's development mode (`python -X dev`) warns of one that was dropped unused. When
        awaited or entered it raises `RateLimited` if it would have to wait longer than it
        may (at once: it never sleeps in vain), `QueueFull`, `CostTooHigh` or, with a load
        controller, `Overloaded`; and `ValueError` or `TypeError` for arguments out of range.
        """
        permit = new_permit()
        permit._limiter = self
        permit.key = key
        permit._max_wait = max_wait
        if cost is _ONE and limit is None:
            permit._at = None
        else:
            permit._at = UNUSUAL
            permit._cost = cost
            permit._limit = limit
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
            if window is not None and (
                window.join(now := self._time(), self._lane_mark) or self._joins_near(window, now)
            ):
                self._passed += 1
                return True
        cost = check_cost(cost)
        limits = self._admission.limits_of(limit)
        is_in = self._admission.try_acquire(key, cost, limits)
        self._passed += is_in
        return is_in

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
        limits = self._admission.limits_of(limit)
        return self._admission.peek(key, check_cost(cost), limits)

    def update(self, *rates: Rate | str) -> None:
        """Use other rates, from the next decision on and for those who wait already.

        What is charged stays charged. A waiter whose cost is above a new limit fails at once,
        and so does one whose deadline cannot be met any more. Where the number of rates
        changes, waiters that came with limits of their own fall under the new ones.
        """
        checked = check_rates(rates)
        self._queues.check_loop(to_serve=True)
        self._store.change(checked)
        self._admission.use_rates()
        self._set_lane()
        for home in tuple(self._queues.by_key):
            self._queues.review(home, self._admission.standings.fits)
            self._queues.serve(home)

    def hold(self, key: Hashable = "", *, seconds: float) -> None:
        """Let nobody of a key pass for so many seconds, as a server has asked with `Retry-After`.

        A hold is only ever extended. Who waits stays in line, or fails at once if its `max_wait`
        cannot be met; afterwards calls leave at the pace of the fastest rate, for a period of it
        or as long as the hold, a minute at most. Raises `ValueError` or `TypeError` as usual.
        """
        seconds = check_cost(seconds, "seconds")
        self._admission.restricted().hold(key, seconds)

    def restrict(
        self,
        key: Hashable = "",
        *,
        remaining: float,
        seconds: float,
        refill: float = 0,
        name: str = "",
    ) -> None:
        """Let at most `remaining` cost of a key pass in the next `seconds`, as a server has told.

        refill: cost a second that comes back evenly meanwhile, as with a token bucket.

        It never lets more pass than the limiter does. What is said again under the same name takes
        the place of what was said before. Raises `ValueError` or `TypeError` as usual.
        """
        remaining, refill = check_cost(remaining, "remaining"), check_cost(refill, "refill")
        seconds = check_cost(seconds, "seconds")
        self._admission.restricted().restrict(key, remaining, seconds, name, refill)

    def reset(self, key: Hashable | None = None) -> None:
        """Forget what one key has used, or all of them. Who waits for it goes as far as it can.

        A key that shares the overflow window (see `max_keys`) is forgotten only with all. Holds
        and restrictions are forgotten too.
        """
        self._admission.reset(key)

    async def try_acquire_async(
        self,
        key: Hashable = "",
        cost: float = 1,
        *,
        limit: Limit | tuple[Limit, ...] | None = None,
    ) -> bool:
        """As `try_acquire`, and for limiters with a `store`, too: it waits for the answer alone."""
        try:
            await self.acquire(key, cost, 0, limit)
        except RateLimited:
            return False
        return True

    async def peek_async(
        self,
        key: Hashable = "",
        cost: float = 1,
        *,
        limit: Limit | tuple[Limit, ...] | None = None,
    ) -> Quota:
        """As `peek`, and for limiters with a `store`, too. Where that is silent: what is known."""
        limits, cost = self._admission.limits_of(limit), check_cost(cost)
        await self._admission.refresh(key, limits)
        limits = self._admission.limits_of(limit, strict=False)  # they may be others by now
        return self._admission.standings.tell(key, cost, limits)

    async def reset_async(self, key: Hashable | None = None) -> None:
        """As `reset`, and for limiters with a `store`, too: for all who share it.

        Raises `aiolimit.StoreError` where the store does not answer.
        """
        await self._admission.forget(key)

    def statistics(self) -> Statistics:
        """The counts since the limiter was made, and what it holds now."""
        ramps, warmth = self._admission.ramps, None
        if ramps is not None and not ramps.warm_up.per_key:
            warmth = ramps.warmth("", self._time())
        admitted, tally = self._entered + self._passed, self._admission.tally
        return Statistics(
            admitted=admitted,
            completed=self._completed,
            in_flight=self._entered - self._completed,
            rejected=tally.rejected(),
            cancelled=self._queues.cancelled,
            waiting=self._queues.waiting,
            keys=len(self._store),
            evicted=self._store.evicted,
            warmth=warmth,
            near_limit=self._near + self._store.near,
            cost_admitted=admitted + tally.cost_beyond,
            cost_returned=tally.cost_returned,
            shadow_rejected=tally.shadow_rejected(),
        )

    def explain(self, key: Hashable = "") -> Explanation:
        """Why a call of cost 1 for this key would pass now, or wait; `str()` it to read it."""
        return explain(self.name, self._admission, self.load, key)

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
        acquire = functools.partial(self.acquire, max_wait=max_wait)
        if max_wait is not ...:
            check_wait(max_wait)
        return limited(acquire, key, cost)

    def __len__(self) -> int:
        return len(self._store)

    def __bool__(self) -> bool:
        return True  # a limiter without keys is a limiter all the same

    def __repr__(self) -> str:
        rates = " and ".join(str(rate) for rate in self._store.rates)
        return f"<Limiter {self.name}: {rates}, {len(self)} keys, {self._queues.waiting} waiting>"

    @property
    def shadow(self) -> bool:
        """Whether it only decides and counts, and refuses nobody."""
        return self._admission.shadow

    def _counts(self) -> tuple[int, int]:
        """Calls that have passed, and of those how many are through, for the load controller."""
        return self._entered + self._passed, self._completed + self._passed

    def _quota(self, permit: Permit) -> Quota:
        limits = self._admission.limits_of(permit._own_limit, strict=False)
        return self._admission.standings.tell(permit.key, 1, limits)
