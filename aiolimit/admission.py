"""Who passes: a call against the store, the queue of its key, and the limits that hold for it.

A call passes at once if nobody waits for its key and the store grants its cost. Otherwise it gets
a place in the queue of its key, where `queues.py` lets it in, or it is refused: at once, with the
time after which it would have passed.
"""

from collections.abc import Callable, Hashable
from math import inf
from threading import get_ident
from typing import ClassVar, Final

from aiolimit.arguments import check_cost, check_limit, check_wait
from aiolimit.clock import Clock, steady_time
from aiolimit.counts import Counts, Limits
from aiolimit.errors import CostTooHigh, QueueFull, RateLimited, Reason, Source
from aiolimit.load.controller import LoadController
from aiolimit.load.gate import UNCOUNTED, Gate, Obstacle
from aiolimit.memory import OVERFLOW, MemoryStore
from aiolimit.permit import ASKED, UNUSUAL, Permit
from aiolimit.queue import GRACE, Waiter
from aiolimit.queues import Queues
from aiolimit.quota import Quota
from aiolimit.ramps import Ramps
from aiolimit.rate import UNLIMITED, Limit
from aiolimit.refusing import Refusing
from aiolimit.restrictions import Restrictions
from aiolimit.settling import settle
from aiolimit.standings import Standings
from aiolimit.sweeper import Sweeper
from aiolimit.tally import Tally
from aiolimit.warmup import WarmUp

__all__ = ["Admission"]

_REVIEWED: Final = 100  # waiters told at once that a charge makes them late; others later


class Admission(Refusing):
    """The decisions of one limiter.

    on_change: called when a queue has come or gone.
    """

    #: Whether what is decided is only counted, and refuses nobody.
    shadow: ClassVar[bool] = False
    #: Whether the counts are here; else a store is asked, which answers later.
    is_here: ClassVar[bool] = True

    __slots__ = (
        "_load",
        "_max_waiters",
        "_name",
        "_on_change",
        "_sweepers",
        "clock",
        "gate",
        "max_wait",
        "own_limits",
        "queues",
        "quota",
        "ramps",
        "restrictions",
        "standings",
        "store",
        "tally",
        "time",
    )

    def __init__(
        self,
        name: str,
        store: MemoryStore,
        clock: Clock,
        max_wait: float | None,
        max_waiters: int | None,
        on_change: Callable[[], object],
        warm_up: WarmUp | None,
        load: LoadController | None,
    ) -> None:
        self._name = name
        self.max_wait = max_wait
        self._max_waiters = max_waiters
        self.store = store
        self.clock = clock
        self._on_change = on_change
        self._load = load
        # One notion of time with the controller's, or they part where the clock is set back.
        self.time = steady_time(clock) if load is None else load.time
        self.ramps = None if warm_up is None else Ramps(store, warm_up, self.time(), on_change)
        self.quota = self._quota()
        self.restrictions: Restrictions | None = None
        self.gate = None if load is None else load.gate
        # In shadow nobody is held up, so the gate has nobody to let in.
        gate = None if self.shadow else self.gate
        self.queues = self._queues(gate)
        self.standings = Standings(name, store, self.ramps, self.time, self.home, max_waiters)
        self._sweepers = [Sweeper(store, clock, self.time)]
        store.on_new_key = self._sweepers[0].see_to_it
        if self.ramps is not None:
            self._sweepers.append(Sweeper(self.ramps, clock, self.time))
            self.ramps.on_new_key = self._sweepers[1].see_to_it
            self.ramps.waiters = self.queues.by_key
            self.queues.on_empty = self.ramps.attempt  # who waited has wanted to pass up to now
        self.queues.on_loop = self._on_loop
        store.is_held = self.queues.by_key.__contains__
        self.tally = Tally(shadow=self.shadow)
        self.own_limits = False  # whether a call has come with a limit of its own
        self.use_rates()

    def _quota(self) -> Counts:
        """What is asked whether a cost passes."""
        return self.ramps or self.store

    def _queues(self, gate: Gate | None) -> Queues:
        """Those who wait."""
        return Queues(
            *(self._name, self.quota, self.clock, self.time),
            *(self._refuse_waiter, self._on_change, gate),
        )

    def use_rates(self) -> None:
        """Take over the limits of the store's rates."""
        self.queues.limits = tuple(rate.limit for rate in self.store.rates)
        if self.ramps is not None:
            self.ramps.use_rates()
        for sweeper in self._sweepers:
            sweeper.periods_changed()

    def _on_loop(self) -> None:
        for sweeper in self._sweepers:
            sweeper.see_to_it()

    def request(self, permit: Permit, *, holds: bool) -> Waiter | None:
        """Let the permit pass, or give it a place among those who wait, or raise.

        holds: whether it is entered, and so stays until it leaves, or only awaited.
        """
        cost, limits, own_limits, max_wait = self.begin(permit)
        now = self.time()
        obstacle = None
        if self._load is not None and self.gate is not None:
            self.gate.check(self._name)
            obstacle = self.gate.obstacle(now, holds=holds) if cost else None
            if obstacle is not None:
                # In shadow nobody waits to see whether it would get in after all.
                if max_wait == 0 or (self.shadow and max_wait is not None):
                    raise self._overloaded(permit.key, obstacle)
                obstacle = None if self.shadow else obstacle
        if obstacle is None:
            home, wait = self.take(permit.key, cost, limits, now)
        else:
            home, wait = self.wait_for_load(permit.key, now)
        if home is not permit.key:
            permit._home = home
        if wait is None:
            permit._cohort = UNCOUNTED if self.gate is None else self.gate.enter(now, holds=holds)
            permit._at = now
            if own_limits is not None:
                permit._layout = self.store.layout if None in limits else None
            if cost != 1:
                self.tally.admit(cost)
            return None
        self.check_turn(permit.key, home, cost, limits, wait, max_wait, now, obstacle)
        deadline = inf if max_wait is None else now + max_wait
        return self.queues.add(
            *(home, permit.key, cost, own_limits, now, wait, deadline, holds, obstacle)
        )

    def begin(self, permit: Permit) -> tuple[float, Limits, Limits | None, float | None]:
        """What a permit asks for: its cost, limits, own limits, and how long it may wait.

        Raises what is wrong with it, and `CostTooHigh`.
        """
        try:
            terms = self.terms(permit)
        except (TypeError, ValueError):
            permit._at = ASKED  # so that nobody is told besides that it was dropped
            raise
        permit._at = ASKED
        cost, limits, *_ = terms
        if not self.standings.fits(cost, limits):
            raise self._refuse(CostTooHigh, "cost_too_high", permit.key, cost, limits, None)
        return terms

    def terms(self, permit: Permit) -> tuple[float, Limits, Limits | None, float | None]:
        """The same, of one that is not asked for yet; raises only what is wrong with it."""
        if permit._at is not None and permit._at != UNUSUAL:
            raise RuntimeError(f"{permit!r} was asked for before; acquire a new one")
        cost, limits, own_limits = permit.cost, self.queues.limits, None
        if permit._at is UNUSUAL:
            cost = permit._cost = check_cost(cost)
            if permit._own_limit is not None:
                limits = own_limits = self.limits_of(permit._own_limit)
        max_wait = permit._max_wait
        return cost, limits, own_limits, self.max_wait if max_wait is ... else check_wait(max_wait)

    def check_turn(
        self,
        key: Hashable,
        home: Hashable,
        cost: float,
        limits: Limits,
        wait: float,
        max_wait: float | None,
        now: float,
        obstacle: Obstacle | None = None,
    ) -> None:
        """Refuse a call whose turn would come too late, or for which there is no place."""
        full = self._max_waiters is not None and self.queues.waiting >= self._max_waiters
        if max_wait is None and not full:
            return
        queue = self.queues.by_key.get(home)
        if queue is not None:
            wait = max(wait, self.queues.behind(queue, cost, limits, now))
        if max_wait is not None and obstacle is not None and wait > max_wait + GRACE:
            raise self._overloaded(key, obstacle)
        if max_wait is not None and wait > max_wait + (GRACE if max_wait else 0.0):
            reason: Reason = "timeout" if max_wait else "quota"
            raise self._refuse(RateLimited, reason, key, cost, limits, wait)
        if full:
            raise self._refuse(QueueFull, "queue_full", key, cost, limits, wait)

    def passed(self, permit: Permit, source: Source) -> None:
        """Note where it was decided that it may pass, unless it was here."""

    async def wait(self, permit: Permit, waiter: Waiter) -> None:
        """Wait for the turn; the permit is granted then, or the error is raised that ended it."""
        asked = self.time()
        permit._at = await self.queues.wait(waiter)
        permit._waited = permit._at - asked
        permit._layout = waiter.layout
        permit._cohort = waiter.cohort
        self.tally.wait(permit._waited)
        if permit.cost != 1:
            self.tally.admit(permit.cost)

    def wait_for_load(self, key: Hashable, now: float) -> tuple[Hashable, float]:
        """Where a call waits that the load controller holds up, and for how long at the least."""
        self.queues.check_loop()
        home = self.home(key, now)
        if self.ramps is not None:
            self.ramps.attempt(home, now)
        if self._load is None or self.gate is None:
            return home, 0.0
        queue = self.queues.by_key.get(home)
        ahead = (len(queue) if queue else 0) + self.gate.waiting()
        return home, ahead / self._load.state.rate

    def try_acquire(self, key: Hashable, cost: float, limits: Limits) -> bool:
        """Let a call pass at once, or count it as refused."""
        if not self.standings.fits(cost, limits):
            self.tally.refuse("cost_too_high")
            return False
        now = self.time()
        gate = self.gate
        if gate is not None and cost:
            gate.check(self._name)
            if (obstacle := gate.obstacle(now, holds=False)) is not None:
                self.refuse_for_load(obstacle)
                return False
        _, wait = self.take(key, cost, limits, now)
        if wait is not None:
            self.tally.refuse("quota")
            return False
        if gate is not None:
            gate.enter(now, holds=False)
        if cost != 1:
            self.tally.admit(cost)
        return True

    def refuse_at_once(self, key: Hashable) -> tuple[float, list[tuple[float, float]]] | None:
        """Refuse a call of cost 1 that would not wait, if a glance tells that it cannot pass.

        Returns the seconds until it could, and how the key stands under each rate; None, with
        nothing done, where the call has to be made to know.
        """
        queues = self.queues
        if self.gate is not None or queues.by_key or get_ident() != queues.thread:
            return None
        found = self.standings.full(key, self.time())
        if found is not None:
            self.tally.refuse("quota")
        return found

    def settle(self, permit: Permit, cost: float) -> None:
        """Charge or give back the difference between what the permit cost and what it costs."""
        more = cost - permit.cost
        settle(self, permit, cost)
        self.tally.settle(more)

    def take(
        self, key: Hashable, cost: float, limits: Limits, now: float, *, only_ask: bool = False
    ) -> tuple[Hashable, float | None]:
        """Charge the cost to the key unless others wait for it or it does not fit.

        Returns where it is charged, and None or the least seconds it would have to wait. Nothing
        is charged where it is only asked.
        """
        queues = self.queues
        if get_ident() != queues.thread or queues.is_elsewhere():
            queues.check_loop()
        home = self.home(key, now)
        if self.ramps is not None:
            self.ramps.attempt(home, now)
        if cost == 0 or (limits[0] is None and not any(limit is not None for limit in limits)):
            return home, None
        queue = self.queues.by_key.get(home)
        late = queue is not None and (not queue or (queue.due <= now and not queue.goes_on))
        if late and queues.is_running():
            queues.serve(home)  # the timer is late; those who wait come first all the same
            queue = self.queues.by_key.get(home)
        if queue is not None:
            return home, queue.due_at(now) - now
        granted, wait = self.quota.take(home, 0 if only_ask else cost, cost, limits, now)
        return home, None if granted or (only_ask and not wait) else wait

    def home(self, key: Hashable, now: float) -> Hashable:
        """The key itself, or the overflow that the keys past `max_keys` share.

        While callers wait in the overflow, unknown keys go there too: one of those who wait may
        be of the same key.
        """
        if self.store.max_keys is None or key in self.queues.by_key or key in self.store:
            return key
        if self.restrictions is not None and key in self.restrictions.by_key:
            return key  # what was said of it must not be forgotten with its window
        return OVERFLOW if OVERFLOW in self.queues.by_key else self.store.home(key, now)

    def limits_of(self, limit: Limit | tuple[Limit, ...] | None, *, strict: bool = True) -> Limits:
        """The limits of a call, one for each rate: its own, or those of the limiter."""
        if limit is None:
            return self.queues.limits
        self.own_limits = True
        if limit is UNLIMITED:
            return (None,) * len(self.store.rates)
        given = limit if isinstance(limit, tuple) else (limit,)
        if len(given) != len(self.store.rates):
            if not strict:  # the number of rates has changed since it was asked
                return self.queues.limits
            raise ValueError(
                f"limit must be UNLIMITED or have one number for each of the "
                f"{len(self.store.rates)} rates of {self._name!r}, not {limit!r}"
            )
        return tuple(None if one is UNLIMITED else check_limit(one) for one in given)

    def peek(self, key: Hashable, cost: float, limits: Limits) -> Quota:
        """What the key has left, and when the cost would pass."""
        return self.standings.tell(key, cost, limits)

    def reset(self, key: Hashable | None) -> None:
        """Forget what one key has used, or all, and what was said of it."""
        self.queues.check_loop(to_serve=True)
        if key is None:
            self.store.clear()
        else:
            self.store.forget(key)
        for bending in (self.ramps, self.restrictions):
            if bending is not None:
                bending.forget(key)
        for home in tuple(self.queues.by_key) if key is None else (key,):
            self.queues.serve(home)

    def is_store_up(self) -> bool:
        """Whether the counts can be asked."""
        return True

    async def refresh(self, key: Hashable, limits: Limits) -> None:
        """Learn how a key stands: it is known here."""

    async def forget(self, key: Hashable | None) -> None:
        """Forget what one key has used, or all."""
        self.reset(key)

    def reconsider(self, home: Hashable) -> None:
        """Something else holds for a key: tell who comes too late now, let in who may go."""
        if home in self.queues.by_key:
            self.queues.review(home, self.standings.fits, most=_REVIEWED)
            self.queues.serve(home)

    def restricted(self) -> Restrictions:
        """The layer that knows of restrictions, put in front of the store if it is not yet."""
        self.queues.check_loop(to_serve=True)
        if self.restrictions is None:
            made = self.restrictions = Restrictions(
                self.store, self.quota, self.time, self._on_change, self.reconsider
            )
            sweeper = Sweeper(made, self.clock, self.time)
            made.on_new_key = sweeper.see_to_it
            self._sweepers.append(sweeper)
            self.quota = self.queues.store = self.standings.quota = made
        return self.restrictions
