"""Callers who wait: a queue for each key that has any, and the one function that lets them in.

1. First come, first served, per key. Only the first of a queue is ever asked about: a large cost
   holds up those behind it and is not overtaken.
2. One timer per queue, set to the moment at which the first can go. Nobody polls, and nobody is
   woken who cannot go.
3. `Queues.serve` runs after every change that may let somebody in: the time has come, a rate has
   changed, something was given back, someone gave up. It is synchronous, and nothing else grants
   to a waiter; there is no `await` between the decision and the charge, so no lock is needed.
4. Who was granted and is cancelled before it runs hands its place on (`Queues.wait`).
5. A bound on waiting is looked at before sleeping, not after: who cannot make it fails at once.
"""

import asyncio
from collections.abc import Callable, Hashable
from functools import partial
from itertools import islice
from math import inf
from threading import get_ident
from typing import Final, cast

from aiolimit.clock import Clock
from aiolimit.counts import Counts, Limits
from aiolimit.errors import CostTooHigh, Overloaded, RateLimited, Reason
from aiolimit.load.gate import Gate, Obstacle
from aiolimit.queue import GRACE, Queue, Waiter, more_generous

__all__ = ["Queues"]

_AT_ONCE: Final = 256  # callers let in before the loop gets its turn: about 2 ms of work


class Queues:
    """All queues of one limiter, on one event loop.

    limits: what the limiter allows now.
    refuse: makes the error for a waiter that is refused after all, and counts it.
    on_change: called when a queue has come or gone.
    gate: of the load controller, which may hold up or refuse whom the quota would let pass.
    """

    def __init__(
        self,
        name: str,
        store: Counts,
        clock: Clock,
        time: Callable[[], float],
        refuse: Callable[[type[RateLimited], Reason, Waiter], RateLimited],
        on_change: Callable[[], object],
        gate: Gate | None,
    ) -> None:
        self.by_key: dict[Hashable, Queue] = {}
        self._soon: set[Hashable] = set()  # those that are served in the next iteration
        self.waiting = 0
        self.cancelled = 0
        self.limits: Limits = ()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.thread: int | None = None
        self._name = name
        self.store = store
        self._clock = clock
        self.time = time
        self._refuse = refuse
        self._on_change = on_change
        self._gate = gate
        self.on_loop: Callable[[], object] = lambda: None  # called when another loop is in use
        #: Called with a key, and the time, when nobody waits for it any more.
        self.on_empty: Callable[[Hashable, float], object] = lambda _key, _now: None

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
        """Give a caller a place that will be its turn in `wait` seconds. It must `wait` then.

        With `held` it is the load controller that says when it is its turn.
        """
        loop = asyncio.get_running_loop()
        if loop is not self.loop:
            self.check_loop()
        queue = self.by_key.get(home)
        if queue is None:
            queue = self.by_key[home] = Queue(home)
            queue.due = now + wait
            self._on_change()
        waiter = Waiter(queue, key, cost, limits, deadline, loop.create_future(), holds)
        queue.add(waiter)
        self.waiting += 1
        if held is not None and len(queue) == 1:
            self.serve(home)
        else:
            queue.wake(self._clock, now, self.serve)
        return waiter

    async def wait(self, waiter: Waiter) -> float:
        """Wait for the turn; return when it was granted, or raise what ended it."""
        try:
            await waiter.future
        except RateLimited:
            raise
        except BaseException:
            self.leave(waiter)
            raise
        return cast(float, waiter.granted_at)  # or the future would not have a result

    def leave(self, waiter: Waiter) -> None:
        """It was cancelled while it waited, or after it was let in and before it ran."""
        queue = waiter.queue
        try:
            if waiter.granted_at is None:
                self._give_up(waiter)
            else:
                self.cancelled += 1
                limits = self.limits_of(waiter)
                now = self.time()
                if self._gate is not None:
                    self._gate.undo(waiter.cohort, now)
                self.store.give_back(
                    queue.key, waiter.cost, limits, waiter.layout, now, waiter.granted_at
                )
        finally:
            if waiter.future.get_loop().is_running():
                self.serve(queue.key)
            elif not queue:
                self._drop(queue)

    def behind(self, queue: Queue, cost: float, limits: Limits, now: float) -> float:
        """Seconds until a newcomer could pass, behind all who wait now.

        It is as if their costs packed without gaps, and under the most generous of the limits
        at hand: so nobody is refused who would have passed, and where costs are mixed a caller
        may learn only later, at its deadline at the latest, that it is not its turn.
        """
        due = queue.due_at(now)
        return max(self._estimate(queue, queue.cost, cost, limits, now), due - now)

    def _estimate(
        self, queue: Queue, ahead: float, cost: float, limits: Limits, now: float
    ) -> float:
        """The least seconds until `ahead` and then the cost can have passed."""
        _, alone = self.store.take(queue.key, 0, cost, limits, now)
        for others in (self.limits, queue.most):
            if others is not None and len(others) == len(limits):
                limits = more_generous(limits, others)
        _, wait = self.store.take(queue.key, 0, cost, limits, now, ahead=ahead)
        return max(alone, wait)

    def serve(self, home: Hashable) -> None:
        """Let in who may go now, in order, and set the timer for who comes next."""
        if self.has_ended():
            self.check_loop()  # nobody is left to be let in
        queue = self.by_key.get(home)
        if queue is None:
            return
        now = self.time()
        held, queue.held, queue.elsewhere, queue.asks = queue.held, None, False, False
        queue.due, queue.goes_on = now, False  # unless somebody turns out to be held up
        for _ in range(_AT_ONCE):
            waiter = queue.first()
            if waiter is None:
                break
            if waiter.future.done():  # cancelled, and not run since
                self._give_up(waiter)
                continue
            if self._gate is not None:
                if held is not None and waiter.deadline + GRACE < now:
                    self._fail(waiter, Overloaded, "overload")  # the loop was too busy for it
                    continue
                if self._hold(self._gate, waiter, now):
                    break
            if waiter.joint is not None:
                wait = waiter.joint.wait()
                if not wait:
                    waiter.joint.grant()
                    continue
                waiter.joint.tell(wait)
                queue.elsewhere = wait == inf
            elif not (wait := self.take_for(waiter, now)):
                waiter.future.set_result(None)
                continue
            if wait < inf and now + wait > waiter.deadline + GRACE:
                self._fail(waiter)
            else:
                queue.due = now + wait
                break
        else:
            queue.goes_on = True
        for _ in range(0 if queue.asks else _AT_ONCE):
            late = queue.most_urgent()
            if late is None or late.deadline > now or queue.due <= now:
                break
            if late is queue.first() and queue.due <= late.deadline + GRACE:
                break
            self._fail(late)
        if self._gate is not None and queue.held is not None:
            # Whoever was first may be gone, and the gate knows nobody but the first.
            if (first := queue.first()) is not None:
                self._gate.hold(first, partial(self.serve, home))
        if queue:
            queue.wake(self._clock, now, self.serve)
        else:
            self._drop(queue)

    def take_for(self, waiter: Waiter, now: float) -> float:
        """Charge what the first of a queue asks for, and let it leave the queue.

        Returns 0, or the seconds until it could be, if it could not.
        """
        queue, limits = waiter.queue, self.limits_of(waiter)
        granted, wait = self.store.take(queue.key, waiter.cost, waiter.cost, limits, now)
        if not granted:
            return wait
        if self._gate is not None:
            waiter.cohort = self._gate.enter(now, holds=waiter.holds)
        self.waiting -= queue.remove(waiter) and waiter.is_counted
        waiter.granted_at = now
        waiter.layout = self.store.layout if None in limits else None
        return 0.0

    def wait_for(self, waiter: Waiter, now: float) -> float:
        """Seconds until what the first of a queue asks for can be charged; infinite while asked."""
        return self.expected(waiter, now)

    def expected(self, waiter: Waiter, now: float) -> float:
        """Seconds until what the first of a queue asks for could be charged, as far as is known."""
        limits = self.limits_of(waiter)
        return self.store.take(waiter.queue.key, 0, waiter.cost, limits, now)[1]

    def told(self, queue: Queue) -> None:
        """The first of a queue is a call under several limiters, and has found out when it goes."""

    def serve_soon(self, home: Hashable) -> None:
        """Serve a queue in the next iteration of the loop: it lost somebody in another's turn."""
        if home not in self._soon and self.loop is not None and not self.loop.is_closed():
            self._soon.add(home)
            self.loop.call_soon(self._serve_now, home)

    def _serve_now(self, home: Hashable) -> None:
        self._soon.discard(home)
        queue = self.by_key.get(home)
        if queue is None or not queue.goes_on:  # else it is served in the next iteration anyway
            self.serve(home)

    def _hold(self, gate: Gate, waiter: Waiter, now: float) -> bool:
        """Whether the load controller holds up the first of a queue; then it will serve it."""
        queue = waiter.queue
        if not gate.dry_run:
            queue.held = gate.look(now, holds=waiter.holds, behind=waiter.order)
        if queue.held is None:
            return False
        queue.due = inf
        gate.hold(waiter, partial(self.serve, queue.key))
        return True

    def review(
        self, home: Hashable, fits: Callable[[float, Limits], bool], most: int | None = None
    ) -> None:
        """Fail those of the first `most` who can never pass, or not in time any more."""
        queue = self.by_key[home]
        now = self.time()
        ahead: float = 0
        for waiter in islice(queue.waiters(), most):
            if waiter.future.done():
                self._give_up(waiter)
                continue
            limits = self.limits_of(waiter)
            if not fits(waiter.cost, limits):
                self._fail(waiter, CostTooHigh, "cost_too_high")
                continue
            if waiter.deadline < inf:
                wait = self._estimate(queue, ahead, waiter.cost, limits, now)
                if now + wait > waiter.deadline + GRACE:
                    self._fail(waiter)
                    continue
            ahead += waiter.cost

    def has_ended(self) -> bool:
        """Whether the loop that was used last is closed."""
        return self.loop is not None and self.loop.is_closed()

    def is_elsewhere(self) -> bool:
        """Whether the loop that was used last is closed, or is paused while callers wait on it."""
        loop = self.loop
        if loop is None:
            return False
        return not loop.is_running() if self.by_key else loop.is_closed()

    def is_running(self) -> bool:
        """Whether the loop that callers wait on is running."""
        return self.loop is not None and self.loop.is_running()

    def check_loop(self, *, to_serve: bool = False) -> None:
        """Notice another event loop or thread; leave behind those who waited on a loop that ended.

        Raises `RuntimeError` while the loop that was used before is running, as two at once would
        share state without a lock; and, before a change `to_serve` those who wait, where they
        wait on a loop that is only paused.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        old = self.loop
        if loop is not old and old is not None and old.is_running():
            advice = "make one limiter for each loop, or call it from its own loop only"
            if loop is None:
                advice = "call it from `async def`, and not from a thread"
            raise RuntimeError(
                f"limiter {self._name!r} is in use on another event loop, which is still running; "
                f"{advice}"
            )
        if to_serve and loop is None and self.waiting and old is not None and not old.is_closed():
            raise RuntimeError(
                f"callers wait for limiter {self._name!r} on an event loop: call it from there"
            )
        if loop is not old and (loop is not None or (old is not None and old.is_closed())):
            for queue in self.by_key.values():
                queue.sleep()
                for waiter in queue.waiters():
                    self._give_up(waiter)
                    if not waiter.future.get_loop().is_closed() and not waiter.future.done():
                        gone = f"limiter {self._name!r} was taken to another event loop"
                        waiter.future.set_exception(RuntimeError(gone))
            self.by_key.clear()
            self._soon.clear()
            self._on_change()
            self.loop = loop
            self.on_loop()
        self.thread = get_ident()

    def limits_of(self, waiter: Waiter) -> Limits:
        """What holds for it: its own limits, unless the number of rates has changed since."""
        own = waiter.limits
        return own if own is not None and len(own) == len(self.limits) else self.limits

    def _drop(self, queue: Queue) -> None:
        queue.sleep()
        if self.by_key.get(queue.key) is queue:
            self.on_empty(queue.key, self.time())
            del self.by_key[queue.key]
            self._on_change()

    def _remove(self, waiter: Waiter) -> bool:
        removed = waiter.queue.remove(waiter)
        self.waiting -= removed and waiter.is_counted
        if removed and waiter.joint is not None:
            waiter.joint.leave(waiter)
        return removed

    def drop_out(self, waiter: Waiter) -> None:
        """Lose a place because one was lost in another line."""
        self.waiting -= waiter.queue.remove(waiter) and waiter.is_counted
        self.serve_soon(waiter.queue.key)

    def _give_up(self, waiter: Waiter) -> None:
        self.cancelled += self._remove(waiter) and not waiter.is_absent

    def _fail(
        self,
        waiter: Waiter,
        error: type[RateLimited] = RateLimited,
        reason: Reason = "timeout",
    ) -> None:
        if waiter.future.done():  # cancelled, and not run since
            self._give_up(waiter)
            return
        if waiter.joint is not None and reason == "timeout":
            waiter.joint.fail()
            return
        self.refuse_now(waiter, error, reason)

    def refuse_now(
        self,
        waiter: Waiter,
        error: type[RateLimited] = RateLimited,
        reason: Reason = "timeout",
    ) -> None:
        """Refuse one who waits, with this limiter's numbers."""
        made: Exception
        if error is RateLimited and waiter.queue.held is not None:
            error, reason = Overloaded, "overload"
        self._remove(waiter)  # first: it is not told to wait for itself
        try:
            made = self._refuse(error, reason, waiter)
        except Exception as raised:  # noqa: BLE001 (a key's own methods; its caller is told)
            made = raised
        waiter.future.set_exception(made)
