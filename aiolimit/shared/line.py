"""Callers of a limiter whose store answers later: those who have asked, and those who wait.

As `Queues`, with one thing more. A caller of whose key nothing is known that stands in its way
has a place at once, and waits for the answer. Only if the answer is "no" does it wait for its
turn, or is refused: it is looked at then, as others are when they come. Until then it is new, and
not counted among those who wait; new ones are behind all others.
"""

import asyncio
import random
from collections.abc import Callable, Hashable
from itertools import takewhile
from math import inf
from typing import Any, Final

from aiolimit.counts import Limits
from aiolimit.errors import QueueFull
from aiolimit.load.gate import Obstacle
from aiolimit.queue import GRACE, Queue, Waiter
from aiolimit.queues import Queues
from aiolimit.shared.quota import TRUST, SharedQuota
from aiolimit.shared.script import Run

__all__ = ["SharedQueues"]

_ASKED: Final = 1024  # callers in one call
_LOOKED_AT: Final = 256  # callers who are told at once that they wait, or are refused
_LATER: Final = 0.01  # seconds
_GATED: Final = 32  # the same where a load controller may hold some of them up


class SharedQueues(Queues):
    """All queues of one limiter, whose quota is asked for."""

    def __init__(
        self, *arguments: Any, quota: SharedQuota, max_waiters: int | None, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.quota = quota
        self._max_waiters = max_waiters
        self._looked_after: set[Hashable] = set()
        #: What ends the waiting where nobody passes without the engine.
        self.unavailable: Callable[[Hashable], Exception] = lambda _key: ConnectionError()

    def add(
        self,
        home: Hashable,
        key: Hashable,
        cost: float,
        limits: Limits | None,
        now: float,
        wait: float,
        deadline: float,
        holds: bool,
        held: Obstacle | None,
    ) -> Waiter:
        """Give a caller a place: that of one who waits, or of one who has asked if `wait` is 0."""
        queue = self.by_key.get(home)
        has_asked = queue is None or queue.asks or queue.goes_on
        if wait or held is not None or not has_asked:
            has_asked = queue is not None and _ends_new(queue)
        if not has_asked:
            waiter = super().add(home, key, cost, limits, now, wait, deadline, holds, held)
            self._look_after(home)
            return waiter
        loop = asyncio.get_running_loop()
        if loop is not self.loop:
            self.check_loop()
        if queue is None:
            queue = self.by_key[home] = Queue(home)
            queue.asks = True
        waiter = Waiter(queue, key, cost, limits, deadline, loop.create_future(), holds)
        waiter.is_counted, waiter.at_once = False, deadline <= now
        queue.add(waiter)
        if not (wait or queue.goes_on):  # else those who go now leave something over, or ask
            self.quota.ask(home, self.limits_of(waiter))
        return waiter

    def take_for(self, waiter: Waiter, now: float) -> float:
        """Spend what was granted on the first of a queue, or ask for it."""
        queue, limits = waiter.queue, self.limits_of(waiter)
        if waiter.is_counted and (wait := self._lets_others(queue, limits, now)):
            if now + wait <= waiter.deadline:
                return wait
        granted, wait = self.store.take(queue.key, waiter.cost, waiter.cost, limits, now)
        if granted:
            if waiter.is_counted:
                queue.fed = now
            if self._gate is not None:
                waiter.cohort = self._gate.enter(now, holds=waiter.holds)
            self.waiting -= queue.remove(waiter) and waiter.is_counted
            at = waiter.granted_at = self.quota.charged_at
            waiter.source = "store" if at is None else at.source
            waiter.layout = self.quota.layout if None in limits else None
            return 0.0
        if wait == inf:
            queue.asks = True
        elif self.quota.contention:
            wait += self._jitter(waiter, now)
        return wait

    def wait_for(self, waiter: Waiter, now: float) -> float:
        """Seconds until what the first of a queue asks for could be charged; else it is asked."""
        home, limits = waiter.queue.key, self.limits_of(waiter)
        wait = super().wait_for(waiter, now)
        ticket = self.quota.credits.of(home)
        if wait or (ticket is not None and ticket.covers(waiter.cost, limits)):
            return wait
        if self.quota.is_local(home):
            return 0.0 if self.quota.passes_locally else inf
        self.quota.ask(home, limits)
        waiter.queue.asks = True
        return inf

    def wanted(self, key: Hashable) -> tuple[list[Run], Limits] | None:
        """What the first ones ask for, who ask under the same limits; None if nobody waits."""
        queue = self.by_key.get(key)
        if queue is not None and len(queue) == 1:  # most are alone
            (alone,) = queue
            if not alone.future.done():
                return [(alone.cost, 1)], self.limits_of(alone)
        runs: list[Run] = []
        limits: Limits = self.limits
        most, total, left = inf, 0.0, _ASKED if self._gate is None else _GATED
        if self.quota.is_paced:
            left = 1
        for waiter in () if queue is None else iter(queue):
            if waiter.future.done():
                continue
            own = self.limits if waiter.limits is None else self.limits_of(waiter)
            if not runs:
                limits = own
                most = min((one for one in own if one is not None), default=inf)
                most /= self.quota.sharing.processes  # others get in between, and have theirs
            elif (own is not limits and own != limits) or waiter.joint is not None:
                break
            if runs and runs[-1][0] == waiter.cost:
                runs[-1] = waiter.cost, runs[-1][1] + 1
            else:
                runs.append((waiter.cost, 1))
            total += waiter.cost
            left -= 1
            if total >= most or not left or waiter.joint is not None:
                break
        return (runs, limits) if runs else None

    def keeps(self, key: Hashable) -> bool:
        """Whether the first keeps what it has, as it waits for the answer of another store."""
        queue = self.by_key.get(key)
        first = None if queue is None else queue.first()
        return queue is not None and queue.asks and first is not None and first.joint is not None

    def told(self, queue: Queue) -> None:
        """It keeps nothing where it does not go at once: what is kept is charged too early."""
        if not queue.asks:
            self.quota.release(queue.key)

    def answered(self, key: Hashable) -> None:
        """The engine has answered, or will not: let in who may go, and look at the others."""
        queue = self.by_key.get(key)
        if queue is not None and len(queue) == 1 and self._gate is None:
            # Most are alone: what follows comes to the same.
            waiter = queue.first()
            if waiter is not None and waiter.joint is None and not waiter.future.done():
                if not self.take_for(waiter, self.time()):
                    waiter.future.set_result(None)
                    self._drop(queue)
                    queue = None
        if queue is not None:
            self.serve(key)
        else:
            self.quota.served(key)

    def serve(self, home: Hashable) -> None:
        """As always; then whoever is new, and cannot go, is looked at as others are who come."""
        super().serve(home)
        queue = self.by_key.get(home)
        if queue is None or not queue.goes_on:
            self.quota.served(home)
        if queue is None or queue.asks or queue.goes_on:
            return
        if new := _new_of(queue):
            self._look_at(new, queue)
        self._look_after(home)

    def _look_at(self, new: list[Waiter], queue: Queue) -> None:
        """Those who have asked wait from now on, or are refused."""
        if len(new) > _LOOKED_AT:
            self.serve_soon(queue.key)  # when the loop has had its turn
        now, ahead = self.time(), queue.cost - sum(waiter.cost for waiter in new)
        first = queue.first()
        for waiter in new[:_LOOKED_AT]:
            if waiter.future.done():
                self._give_up(waiter)
                continue
            if self._max_waiters is not None and self.waiting >= self._max_waiters:
                self.refuse_now(waiter, QueueFull, "queue_full")
                continue
            if waiter.deadline < inf:
                limits = self.limits_of(waiter)
                wait = self._estimate(queue, ahead, waiter.cost, limits, now)
                if now + wait > waiter.deadline + GRACE:
                    self._fail(waiter)
                    continue
            waiter.is_counted = True
            self.waiting += 1
            ahead += waiter.cost
        if queue.first() is not first:
            self.serve(queue.key)

    def fail(self, key: Hashable, most: int) -> None:
        """The engine did not answer, and nobody passes then: end the waiting of the first ones."""
        queue = self.by_key.get(key)
        if queue is None:
            return
        for waiter in queue.waiters()[: most or None]:
            if waiter.future.done():
                self._give_up(waiter)
            else:
                self._remove(waiter)
                waiter.future.set_exception(self.unavailable(waiter.key))
        self.answered(key)

    def check_loop(self, *, to_serve: bool = False) -> None:
        """As always; who waited on a loop that ended has asked for nothing."""
        old = self.loop
        super().check_loop(to_serve=to_serve)
        if self.loop is not old:
            self._looked_after.clear()
            self.quota.credits.clear()

    def _look_after(self, home: Hashable) -> None:
        """Ask again before its time comes where that is long, as what is known grows old."""
        queue = self.by_key.get(home)
        if queue is None or queue.asks or home in self._looked_after:
            return
        soon = self.quota.looks_again(home)
        if soon is None or queue.due - self.time() <= soon:
            return
        self._looked_after.add(home)

        def look() -> None:
            self._looked_after.discard(home)
            if home in self.by_key:
                self.quota.doubt(home)
                self.serve(home)

        # In real time: it is the world outside that changes.
        asyncio.get_running_loop().call_later(soon, look)

    def _lets_others(self, queue: Queue, limits: Limits, now: float) -> float:
        """Seconds for which those who wait elsewhere may come first: here the part is used up.

        Or whoever is nearest to the engine would have all that becomes free, each time.
        """
        if queue.fed + _LATER <= now or self.quota.credits.of(queue.key) is not None:
            return 0.0
        return queue.fed + _LATER - now if self._has_its_part(queue.key, limits, now) else 0.0

    def _has_its_part(self, key: Hashable, limits: Limits, now: float) -> bool:
        """Whether this process, one of some, has used what it may if all use as much.

        Not where a burst paces: what becomes free is one at a time.
        """
        quota, processes = self.quota, self.quota.sharing.processes
        if processes < 2 or quota.mirror.burst is not None or quota.is_local(key):
            return False
        looks = quota.local.look(key, 0, limits, now)
        return any(
            one is not None and limit is not None and limit - one.remaining >= limit / processes
            for one, limit in zip(looks, limits, strict=True)
        )

    def _jitter(self, waiter: Waiter, now: float) -> float:
        """Seconds by which to come later than others who heard the same; longer the more share.

        Who was let in last comes just when there is room, so whoever comes a little later finds
        none, each time. Who has come in vain lets some go ahead instead, and is then just in time
        as well: whose turn it is, is open again. So many go ahead that about one of four asks is
        in vain, however many share.
        """
        quota, home, limits = self.quota, waiter.queue.key, self.limits_of(waiter)
        most = min((limit for limit in limits if limit is not None), default=0.0)
        others = max(1, quota.sharing.processes - 1)
        ahead = waiter.cost * int(6 * others * random.random())  # noqa: S311
        ahead = min(ahead, most - waiter.cost)
        if ahead <= 0 or quota.is_local(home):
            return 0.0
        wait = quota.take(home, 0, waiter.cost, limits, now)[1]
        later = quota.take(home, 0, waiter.cost, limits, now, ahead=ahead)[1]
        return max(0.0, min(later - wait, TRUST, waiter.deadline - now - wait))


def _ends_new(queue: Queue) -> bool:
    last = next(reversed(queue), None)
    return last is not None and not last.is_counted


def _new_of(queue: Queue) -> list[Waiter]:
    """Those at its end who wait for an answer only."""
    new = list(takewhile(lambda waiter: not waiter.is_counted, reversed(queue)))
    new.reverse()
    return new
