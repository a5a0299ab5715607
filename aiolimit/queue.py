"""The queue of one key: who came when, who must have an answer first, and one timer.

It decides nothing (`queues.py` does). Anyone is added and taken out in O(1), so a queue of
thousands costs a caller no more than a queue of one.
"""

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import count
from math import inf
from typing import Final, Protocol

from aiolimit.clock import Clock, Timer
from aiolimit.counts import Limits
from aiolimit.errors import Source
from aiolimit.load.gate import UNCOUNTED, Cohort, Obstacle

__all__ = ["GRACE", "Joint", "Queue", "Waiter", "more_generous"]

GRACE: Final = 1e-6  # seconds: sums of waits are rounded, and must not refuse who is just in time

_arrival = count()


def more_generous(one: Limits, other: Limits) -> Limits:
    """Rate by rate the higher limit; None, which does not limit, where either has it."""
    return tuple(
        None if left is None or right is None else max(left, right)
        for left, right in zip(one, other, strict=True)
    )


class Joint(Protocol):
    """A call that waits in the lines of several limiters: see `joint.py`."""

    def wait(self) -> float:
        """Seconds until all of them let it pass; infinite while it is not first in every line."""
        ...

    def grant(self) -> None:
        """Let it pass."""
        ...

    def leave(self, waiter: "Waiter") -> None:
        """It has lost its place in one line, and with it all others."""
        ...

    def tell(self, wait: float) -> None:
        """Tell the lines in which it is first when it may go."""
        ...

    def fail(self) -> None:
        """Refuse it, for the limiter that it waits for longest."""
        ...


class Waiter:
    """One caller who waits."""

    __slots__ = (
        "at_once",
        "cohort",
        "cost",
        "deadline",
        "future",
        "granted_at",
        "holds",
        "is_absent",
        "is_counted",
        "is_held",
        "joint",
        "key",
        "layout",
        "limits",
        "order",
        "queue",
        "source",
    )

    def __init__(
        self,
        queue: "Queue",
        key: Hashable,
        cost: float,
        limits: Limits | None,
        deadline: float,
        future: asyncio.Future[None],
        holds: bool,
    ) -> None:
        self.queue = queue
        self.key = key
        self.cost = cost
        self.limits = limits  # of this call; None for those of the limiter, whatever they become
        self.deadline = deadline  # the latest time that helps; infinite without a bound
        self.future = future
        self.holds = holds  # whether it stays in `async with`, or only acquires
        self.order = next(_arrival)
        self.is_held = False  # whether the gate has it on its list
        self.cohort: Cohort = UNCOUNTED  # what it was counted in when it was let in
        self.is_absent = False  # whether nobody waits: see `shadow.py`
        # With a store that answers later: whether it waits for quota, and not only for the answer;
        # whether it would wait for no more than that; where it was decided that it may go.
        self.is_counted = True
        self.at_once = False
        self.source: Source = "local"
        self.joint: Joint | None = None
        self.granted_at: float | None = None
        self.layout: int | None = None  # of the store, if it was charged to some rates only

    def is_first(self) -> bool:
        """Whether it still waits, and is the first of its key."""
        return self.queue.first() is self and not self.future.done()


class Queue:
    """All who wait for one key, in order. Anyone is added and taken out in O(1)."""

    __slots__ = (
        "_deadlines",
        "_timer",
        "_timer_at",
        "_waiters",
        "asks",
        "cost",
        "due",
        "elsewhere",
        "expected",
        "fed",
        "goes_on",
        "held",
        "key",
        "most",
    )

    def __init__(self, key: Hashable) -> None:
        self.key = key  # of the windows: the overflow's for those past `max_keys`
        self.cost: float = 0  # of all who wait, together
        self.due = inf  # when the first can go
        self.most: Limits | None = None  # the most generous limits that callers brought along
        self.held: Obstacle | None = None  # why the load controller holds up the first
        # Whether the first is a joint call that another line's timer lets in; when at the least.
        self.elsewhere = False
        self.expected = -inf
        self.goes_on = False  # whether more may go now, and wait for the loop to come round
        self.asks = False  # whether a store was asked for the first, and answers later
        self.fed = -inf  # when one who had waited was let in last, where others wait elsewhere
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()
        self._deadlines: list[tuple[float, int, Waiter]] = []
        self._timer: Timer | None = None
        self._timer_at = inf

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._waiters)

    def __reversed__(self) -> Iterator[Waiter]:
        return reversed(self._waiters)

    def __contains__(self, waiter: Waiter) -> bool:
        return waiter in self._waiters

    def due_at(self, now: float) -> float:
        """When the first can go, as far as is known: something else than the quota may say."""
        if self.held is not None or self.asks:
            return now
        return max(now, self.expected) if self.elsewhere else self.due

    def first(self) -> Waiter | None:
        """Who is next."""
        return next(iter(self._waiters), None)

    def waiters(self) -> tuple[Waiter, ...]:
        """All of them, in order, as they are now."""
        return tuple(self._waiters)

    def add(self, waiter: Waiter) -> None:
        """Let a caller wait, behind all others."""
        self._waiters[waiter] = None
        self.cost += waiter.cost
        if waiter.limits is not None:
            if self.most is None or len(self.most) != len(waiter.limits):
                self.most = waiter.limits
            else:
                self.most = more_generous(self.most, waiter.limits)
        if waiter.deadline < inf:
            heapq.heappush(self._deadlines, (waiter.deadline, waiter.order, waiter))
            if len(self._deadlines) > 2 * len(self._waiters) + 64:
                self._deadlines = [item for item in self._deadlines if item[2] in self._waiters]
                heapq.heapify(self._deadlines)

    def remove(self, waiter: Waiter) -> bool:
        """Take a caller out; False if it was not in the queue."""
        if waiter not in self._waiters:
            return False
        del self._waiters[waiter]
        self.cost = self.cost - waiter.cost if self._waiters else 0
        return True

    def most_urgent(self) -> Waiter | None:
        """Whose deadline is the earliest; None if nobody has one."""
        while self._deadlines:
            waiter = self._deadlines[0][2]
            if waiter in self._waiters:
                return waiter
            heapq.heappop(self._deadlines)
        return None

    def wake(self, clock: Clock, now: float, serve: Callable[[Hashable], object]) -> None:
        """Have `serve` called when the first can go or somebody's time runs out."""
        urgent = None if self.asks else self.most_urgent()
        at = self.due
        if urgent is not None and urgent.deadline < at:
            grace = GRACE if urgent is self.first() else 0.0
            at = at if at <= urgent.deadline + grace else urgent.deadline
        if at == self._timer_at:
            return
        self.sleep()
        if at < inf:
            self._timer_at = at
            on_time = partial(self._on_time, clock, serve)
            self._timer = clock.call_later(max(0.0, at - now), on_time)

    def _on_time(self, clock: Clock, serve: Callable[[Hashable], object]) -> None:
        self.sleep()
        try:
            serve(self.key)
        except BaseException:  # a key's own methods may raise, and must not stop the queue
            if self._waiters and self._timer is None:
                self._timer = clock.call_later(1.0, partial(self._on_time, clock, serve))
            raise

    def sleep(self) -> None:
        """Have nothing called."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_at = inf
