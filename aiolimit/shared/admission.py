"""Who passes where processes share the counts: as `Admission`, with a store that answers later."""

import asyncio
from collections.abc import Hashable
from math import inf
from threading import get_ident
from typing import Any, ClassVar, Final, cast

from aiolimit.admission import Admission
from aiolimit.counts import Counts, Limits
from aiolimit.errors import RateLimited, Reason, Source, StoreError, StoreUnavailable
from aiolimit.load.gate import Gate, Obstacle
from aiolimit.memory import MemoryStore
from aiolimit.permit import ASKED, Permit
from aiolimit.queue import Waiter
from aiolimit.queues import Queues
from aiolimit.quota import Quota
from aiolimit.shadow import ShadowAdmission
from aiolimit.shared.jobs import Look
from aiolimit.shared.line import SharedQueues
from aiolimit.shared.quota import SharedQuota
from aiolimit.shared.sharing import Sharing
from aiolimit.sweeper import Sweeper
from aiolimit.tally import Tally

__all__ = ["SharedAdmission", "SharedShadowAdmission"]

_NO_WAIT: Final = 0
#: Refusals that are the engine's decisions, or what stands in for it; others are this process's.
_ITS: Final[frozenset[Reason]] = frozenset(("quota", "timeout", "queue_full"))


class SharedAdmission(Admission):
    """The decisions of one limiter whose counts an engine keeps.

    `store` is what this process knows of them.
    """

    is_here: ClassVar[bool] = False

    __slots__ = ("_is_plain", "_is_strict", "_rates", "shared", "sharing")

    shared: SharedQuota

    def __init__(self, name: str, store: MemoryStore, *options: Any, **more: Any) -> None:
        self.sharing: Sharing = more.pop("sharing")
        self._is_strict = self.sharing.policy in ("closed", "raise")
        self._rates = store.rates
        super().__init__(name, store, *options, **more)
        self.standings.quota = self.shared
        self.tally = Tally(shadow=self.shadow, shared=True)
        self.sharing.on_silence = self._silenced
        self.sharing.on_recovery = self._recovered
        if (waits_for := getattr(self.clock, "waits_for", None)) is not None:
            waits_for(self.sharing.is_busy)  # a clock of tests, which would run ahead of answers
        self.sharing.on_close = self.shared.credits.release_all
        self._sweepers.append(Sweeper(self.shared.local, self.clock, self.time))
        self.shared.local.counts.on_new_key = self._sweepers[-1].see_to_it

    def _quota(self) -> Counts:
        self.shared = SharedQuota(self.sharing, self.store, self.ramps, self.clock, self.time)
        return self.shared

    def _queues(self, gate: Gate | None) -> Queues:
        queues = SharedQueues(
            *(self._name, self.quota, self.clock, self.time),
            *(self._refuse_waiter, lambda: None, gate),  # there is no fast lane to be closed
            quota=self.shared,
            max_waiters=self._max_waiters,
        )
        queues.unavailable = self._unavailable
        self.shared.line = queues
        return queues

    def use_rates(self) -> None:
        """Take over the limits of the rates; what is charged moves to the new periods."""
        super().use_rates()
        self.shared.use_rates(self._rates)
        self._rates = self.store.rates
        fits = self.standings.fits(1, self.queues.limits)
        is_bare = self.gate is None and self.ramps is None
        self._is_plain = fits and is_bare and not self._is_strict

    def request(self, permit: Permit, *, holds: bool) -> Waiter | None:
        """As `Admission.request`; whoever has to ask gets a place, and waits for the answer."""
        self.shared.charged_at = None
        bound = permit._max_wait
        if permit._at is None and self._is_plain and (bound is ... or bound is _NO_WAIT):
            # Most calls are like this: what follows comes to the same, in fewer steps.
            queue = self.queues.by_key.get(permit.key)
            if queue is not None:
                if queue.asks or queue.goes_on:
                    return self._place(permit, holds=holds)
            elif get_ident() == self.queues.thread and not self.queues.is_elsewhere():
                limits = self.queues.limits
                _, wait = self.quota.take(permit.key, 1, 1, limits, self.time())
                if wait == inf:
                    return self._place(permit, holds=holds)
        at = self.shared.charged_at
        waiter = None if at is not None else super().request(permit, holds=holds)
        at = self.shared.charged_at
        if at is not None:
            permit._at = at
            self.passed(permit, at.source)
        return waiter

    def _place(self, permit: Permit, *, holds: bool) -> Waiter:
        """A place for one who asks for a cost of 1 under the limits of all."""
        permit._at = ASKED
        bound = self.max_wait if permit._max_wait is ... else _NO_WAIT
        now = self.time()
        deadline = inf if bound is None else now + bound
        return self.queues.add(*(permit.key, permit.key, 1, None, now, 0.0, deadline, holds, None))

    async def wait(self, permit: Permit, waiter: Waiter) -> None:
        """As `Admission.wait`; who only waited for an answer has not waited."""
        asked = self.time()
        try:  # as `Queues.wait`, which would be a coroutine more for each call
            await waiter.future
        except RateLimited:
            raise
        except BaseException:
            self.queues.leave(waiter)
            raise
        at: Any = waiter.granted_at  # or the future would not have a result
        permit._at = at
        permit._layout, permit._cohort = waiter.layout, waiter.cohort
        if waiter.is_counted:
            permit._waited = max(0.0, at - asked)
            self.tally.wait(permit._waited)
        if waiter.cost != 1:
            self.tally.admit(waiter.cost)
        self.passed(permit, waiter.source)

    def passed(self, permit: Permit, source: Source) -> None:
        """As `Admission.passed`."""
        permit._source = source
        self.tally.sources[source] += 1

    def take(
        self, key: Hashable, cost: float, limits: Limits, now: float, *, only_ask: bool = False
    ) -> tuple[Hashable, float | None]:
        """As `Admission.take`; where it has to be asked, nothing is known that makes it wait."""
        if cost and limits.count(None) < len(limits):
            if self._is_strict and self.shared.is_local(key):
                raise self._unavailable(key)
            home, wait = super().take(key, cost, limits, now, only_ask=only_ask)
            return home, 0.0 if wait == inf or (only_ask and wait is None) else wait
        return super().take(key, cost, limits, now, only_ask=only_ask)

    def home(self, key: Hashable, _now: float) -> Hashable:
        """Each key counts by itself, in the engine: `max_keys` bounds what is known here."""
        return key

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
        """As `Admission.check_turn`; who has only asked is looked at when it is answered."""
        queue = self.queues.by_key.get(home)
        if obstacle is None and not wait:
            if queue is None or queue.asks or queue.goes_on:
                return
        super().check_turn(key, home, cost, limits, wait, max_wait, now, obstacle)

    def try_acquire(self, _key: Hashable, _cost: float, _limits: Limits) -> bool:
        """Raises `RuntimeError`: the answer is not here at once."""
        raise self._later("try_acquire")

    def peek(self, _key: Hashable, _cost: float, _limits: Limits) -> Quota:
        """Raises `RuntimeError`: the answer is not here at once."""
        raise self._later("peek")

    def reset(self, _key: Hashable | None) -> None:
        """Raises `RuntimeError`: it is not done at once."""
        raise self._later("reset")

    def _later(self, name: str) -> RuntimeError:
        return RuntimeError(
            f"limiter {self._name!r} keeps its counts in a store that answers later: "
            f"await {name}_async(...) in place of {name}(...)"
        )

    def is_store_up(self) -> bool:
        """Whether the engine is asked, all of its nodes that have been."""
        return self.sharing.is_up()

    async def refresh(self, key: Hashable, limits: Limits) -> None:
        """Learn how a key stands."""
        self.queues.check_loop()
        if not self.shared.is_local(key):
            heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            job = Look(self.shared, key, limits, lambda: _end(heard))
            self.sharing.put(key, job)
            await heard

    async def forget(self, key: Hashable | None) -> None:
        """Have the engine forget a key, or all. Raises `StoreError` where it does not answer."""
        try:
            calls = self.shared.calls
            await self.sharing.forget(key, self.store.sub_windows, calls.layouts, calls.now())
        except Exception as error:
            raise StoreError(f"{self._name}: the store did not forget {key!r}") from error
        self.shared.forget(key)
        super().reset(key)

    def _silenced(self) -> None:
        """Nobody waits for an engine that is not asked."""
        for home in tuple(self.queues.by_key):
            if self.sharing.is_silent(home):
                if self._is_strict:
                    cast(SharedQueues, self.queues).fail(home, 0)
                else:
                    self.queues.serve(home)

    def _recovered(self) -> None:
        self.shared.telling.recovered()
        for home in tuple(self.queues.by_key):
            self.queues.serve(home)

    def _unavailable(self, key: Hashable) -> Exception:
        """Count a call that nobody can decide, and make the error that tells of it."""
        if self.sharing.policy == "raise":
            error = StoreError(f"{self._name}: the store does not answer")
            error.__cause__ = self.sharing.sender(key).last_error
            return error
        again = self.sharing.retry_after(key)
        self.tally.refuse("store_unavailable")
        self.tally.sources["closed"] += 1
        rate = self.store.rates[0]
        return StoreUnavailable(
            f"{self._name}: the store does not answer; retry after {again:.2g} s",
            limiter=self._name,
            key=key,
            rate=rate,
            limit=rate.limit,
            remaining=0,
            retry_after=again,
            reset_after=again,
            reason="store_unavailable",
            source="closed",
        )

    def _refuse(
        self,
        error: type[RateLimited],
        reason: Reason,
        key: Hashable,
        cost: float,
        limits: Limits,
        wait: float | None,
    ) -> RateLimited:
        made = super()._refuse(error, reason, key, cost, limits, wait)
        if reason in _ITS:
            made.source = self.shared.source(key)
            self.tally.sources[made.source] += 1
        return made

    def _refuse_waiter(
        self, error: type[RateLimited], reason: Reason, waiter: Waiter
    ) -> RateLimited:
        if not waiter.at_once or reason not in ("timeout", "queue_full"):
            return super()._refuse_waiter(error, reason, waiter)
        # It would not have waited at all: it is told how the key stands, and not who else asks.
        limits = self.queues.limits_of(waiter)
        wait = self.quota.take(waiter.queue.key, 0, waiter.cost, limits, self.time())[1]
        return self._refuse(RateLimited, "quota", waiter.key, waiter.cost, limits, wait)


def _end(heard: asyncio.Future[None]) -> None:
    if not heard.done():
        heard.set_result(None)


class SharedShadowAdmission(ShadowAdmission, SharedAdmission):
    """The decisions of such a limiter, of which nothing follows."""

    __slots__ = ()

    def _unavailable(self, key: Hashable) -> Exception:
        made = super()._unavailable(key)
        if isinstance(made, StoreError):  # nobody is refused in shadow, whatever happens
            self.tally.refuse("store_unavailable")
            rate = self.store.rates[0]
            facts = {"limit": rate.limit, "remaining": 0, "retry_after": 0.0, "reset_after": 0.0}
            return StoreUnavailable(
                str(made), limiter=self._name, key=key, rate=rate, **cast(Any, facts)
            )
        return made
