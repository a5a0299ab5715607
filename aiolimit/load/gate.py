"""The gate: what a call passes on its way in and out, while a controller looks after the process.

1. Whether a call may pass is looked at when it asks, and not by a timer: in an overloaded process
   the iterations of the event loop grow, and whatever runs once in an iteration comes late.
2. How old the current iteration is, a marker tells that is put behind what is ready to run, with
   `call_soon`. Nobody has to ask until the iteration can be too old or all places are taken, and
   when the marker comes round quickly for another 30 ms. There is no timer, and nothing at all
   while nobody calls.
3. Whoever holds a permit is in flight until it leaves. It is counted in the cohort of its time, so
   that those who stay for minutes (streams, websockets) can be taken out of the count together.
   Those who had to ask are in a cohort of their own, and are timed.
4. Who may wait does so in the order of arrival, over all keys and limiters. A place that is free
   goes to the first of them; nobody who comes later gets it.

All times are seconds of the controller's clock.
"""

import asyncio
import heapq
from collections.abc import Callable
from math import inf
from threading import get_ident
from typing import Any, Final, Literal, Protocol, TypeAlias

from aiolimit.clock import Clock, Timer
from aiolimit.pacer import Pacer

__all__ = ["UNCOUNTED", "Cohort", "Gate", "Held", "Obstacle"]

_LICENCE: Final = 0.03
_LONG: Final = 0.005  # an iteration that takes longer is counted as work, and watched
_PACE_BURST: Final = 0.05  # seconds by which callers who only acquire may be ahead
_ANY: Final = 1 << 40  # places; a whole number, which compares faster with one than infinity does
_COHORTS: Final = 64  # more are not kept: the oldest is 16 s old then

#: Why a call may not pass: the iteration is old, the cap is reached, the pace is exceeded.
Obstacle: TypeAlias = Literal["iteration", "in_flight", "rate"]


class Held(Protocol):
    """A caller that waits for the gate, at the head of its queue."""

    order: int
    holds: bool
    is_held: bool

    def is_first(self) -> bool:
        """Whether it still waits, and is the first of its key."""
        ...


class Cohort:
    """Those who came in one step of the controller, and stay.

    until, most: whoever comes before that time, while fewer than that are held, need not ask.
    asks: whether who leaves has to tell the gate.
    """

    __slots__ = ("asks", "held", "most", "since", "until")

    def __init__(self, since: float, *, asks: bool = False) -> None:
        self.since = since
        self.held = 0
        self.until = -inf
        self.most = 0
        self.asks = asks


#: The cohort of those who pass no gate.
UNCOUNTED: Final = Cohort(-inf)


class Gate:
    """The door of one process: open, or closed for a reason."""

    __slots__ = (
        "_clock",
        "_cohorts",
        "_lagged",
        "_loop",
        "_marker_at",
        "_on_due",
        "_pacer",
        "_thread",
        "_time",
        "_timer",
        "_waiting",
        "_waits",
        "cap",
        "capped",
        "cohort",
        "dry_run",
        "due",
        "early",
        "iteration",
        "longest",
        "rate",
        "refused",
        "shortest",
        "timed",
        "would_refuse",
    )

    def __init__(
        self, clock: Clock, time: Callable[[], float], on_due: Callable[[float], object]
    ) -> None:
        self._clock = clock
        self._time = time
        self._on_due = on_due
        self._timer: Timer | None = None
        self._cohorts: list[Cohort] = []  # all that count, the newest last
        self.iteration = inf  # the age at which an iteration is too old
        self.cap = inf
        self.rate = inf
        self.dry_run = False
        #: Calls that a dry run let in, and that would have been held up or refused.
        self.would_refuse = 0
        self.refused = 0  # so far
        self.early = 0  # of those, before their request was read and any limiter was asked
        self._lagged = 0.0
        self.open(None)

    @classmethod
    def always_open(cls, clock: Clock) -> "Gate":
        """A gate that nobody watches, and that lets everyone in."""
        gate = cls(clock, clock.time, lambda _now: None)
        gate.cohort.until = inf
        gate.cohort.most = _ANY
        return gate

    def open(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Begin anew, on that loop: those who came before are not counted any more."""
        self._loop = loop
        self._thread = get_ident()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for cohort in self._cohorts:
            cohort.asks, cohort.until = False, -inf
        self._cohorts.clear()
        self._waits = False
        self._begin(self._time())
        self._marker_at: float | None = None
        self._pacer = Pacer()
        # Those who hold and those who only acquire wait for different things.
        self._waiting: dict[bool, list[tuple[int, Held, Callable[[], object]]]]
        self._waiting = {True: [], False: []}
        self.capped = 0  # of those, since the last step, because of the cap
        self.shortest = inf  # that anyone was held, since the last step
        self.longest = 0.0  # of the iterations since then
        self.due = inf  # when the controller wants to be called

    @property
    def in_flight(self) -> int:
        """How many hold a permit, and count."""
        count = 0
        for cohort in self._cohorts:
            count += cohort.held
        return count

    def check(self, limiter: str) -> None:
        """Raise `RuntimeError` where nobody looks after the process on this event loop."""
        if self._loop is not None and self._loop.is_running() and get_ident() != self._thread:
            raise RuntimeError(
                f"the LoadController of limiter {limiter!r} runs on another event loop; "
                "make one of each for every loop"
            )
        if self._loop is None or not self._loop.is_running():
            raise RuntimeError(
                f"the LoadController of limiter {limiter!r} is not running: enter it, with "
                "`async with controller: ...` around the work, or run the application with "
                "RateLimitMiddleware and a server that does ASGI lifespan (uvicorn --lifespan on)"
            )

    def watches(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether that is the event loop it stands at."""
        return self._loop is loop

    def obstacle(self, now: float, *, holds: bool) -> Obstacle | None:
        """Why a newcomer may not pass now; None if it may.

        This is where the controller's steps are taken when its timer is late, so others may be
        let in first.
        """
        if now >= self.due:
            self._on_due(now)
        if self._marker_at is None and self._loop is not None:
            self._marker_at = now
            self._loop.call_soon(self._mark)
        found = self.look(now, holds=holds)
        if found is None:
            if not self._waits and self._marker_at is not None:
                # The next need not ask before the iteration can be too old.
                self._allow(min(self._marker_at + self.iteration, self.due))
        elif self.dry_run:
            self.would_refuse += 1
            return None
        return found

    def look(self, now: float, *, holds: bool, behind: int | None = None) -> Obstacle | None:
        """The same, but nothing follows from it: nobody is let in, nothing is set going.

        behind: the order of arrival of one who waits already; a newcomer comes after all.
        """
        # Who only acquires is not counted, so an old iteration is all there is to see of them.
        oldest = self.iteration if holds else self.iteration / 2
        if self._marker_at is not None and now - self._marker_at > oldest:
            return "iteration"
        if holds:
            if self.in_flight >= self.cap:
                return "in_flight"
        elif self.wait_for_pace(now) > 0:
            return "rate"
        if self._waits:
            first = self._first(holds)
            if first is not None and (behind is None or first[0] < behind):
                return "in_flight" if holds else "rate"
        return None

    def refuse(self, obstacle: Obstacle) -> None:
        """Count one that did not pass."""
        self.refused += 1
        self.capped += obstacle != "iteration"

    def enter(self, now: float, *, holds: bool) -> Cohort:
        """Count one in that has asked; returns the cohort that it has to leave."""
        if holds:
            self.timed.held += 1
            self.cohort.most -= 1
            return self.timed
        if self.rate < inf:
            self._pacer.take(1, now, self.rate)
        return UNCOUNTED

    def leave(self, came: float) -> None:
        """One has left a cohort that asks, which does not hold it any more."""
        self.shortest = min(self.shortest, self._time() - came)
        if self._waits:
            self.wake()

    def undo(self, cohort: Cohort, now: float) -> None:
        """One that was counted in never came: it was cancelled on the way."""
        cohort.held -= 1
        if cohort is UNCOUNTED and self.rate < inf:
            self._pacer.give_back(1, now, now, self.rate, self.rate)
        if self._waits:
            self.wake()

    def hold(self, waiter: Held, serve: Callable[[], object]) -> None:
        """Have `serve` called when there may be a place for the waiter."""
        if waiter.is_held:
            return
        waiter.is_held = True
        heapq.heappush(self._waiting[waiter.holds], (waiter.order, waiter, serve))
        if not self._waits:
            self._waits = True
            self.cohort.until = -inf
            for cohort in self._cohorts:
                cohort.asks = True
        if not waiter.holds:
            self._wake_in_time(self._time())

    def wake(self) -> None:
        """Let in who may go now, in order of arrival."""
        now = self._time()
        for holds in (True, False):
            while (first := self._first(holds)) is not None:
                order, waiter, serve = first
                # Looked at without a new marker: each would wake them again, in every iteration.
                if self.look(now, holds=holds, behind=order) is not None:
                    if not holds:
                        self._wake_in_time(now)
                    break
                heapq.heappop(self._waiting[holds])
                waiter.is_held = False
                try:
                    serve()
                except Exception as error:  # noqa: BLE001 (a key's own methods may raise)
                    self._tell(error)

    def wait_for_pace(self, now: float) -> float:
        """Seconds until the pace lets one more pass who only acquires."""
        if self.rate == inf:
            return 0.0
        return self._pacer.wait(1, now, self.rate, max(1.0, _PACE_BURST * self.rate))

    def waiting(self) -> int:
        """How many keys have somebody who waits."""
        return len(self._waiting[True]) + len(self._waiting[False])

    def lagged(self, now: float) -> float:
        """Seconds so far in iterations that took long, as far as anyone was there to see."""
        pending = 0.0 if self._marker_at is None else now - self._marker_at
        return self._lagged + (pending if pending > _LONG else 0.0)

    def oldest(self, now: float) -> float:
        """Seconds that the oldest of those in flight have been there, by their cohort."""
        return max((now - cohort.since for cohort in self._cohorts if cohort.held), default=0.0)

    def turn(self, now: float, retire_before: float) -> None:
        """Begin new cohorts; those from before that time are not counted any more."""
        until, self.cohort.until = self.cohort.until, -inf
        kept = []
        for age, cohort in enumerate(reversed(self._cohorts)):
            if cohort.held and cohort.since >= retire_before and age < _COHORTS:
                kept.append(cohort)
            else:
                cohort.asks = False
        self._cohorts = kept[::-1]
        self._begin(now)
        self.cohort.until = until

    def set_limits(self, cap: float, rate: float, iteration: float) -> None:
        """Take over what the controller has concluded, and let in whom that lets in."""
        self.cap, self.rate, self.iteration = cap, rate, iteration
        self._allow(self.cohort.until)
        if self._waits:
            self.wake()

    def _begin(self, now: float) -> None:
        self.cohort = Cohort(now, asks=self._waits)
        self.timed = Cohort(now, asks=True)
        self._cohorts += (self.cohort, self.timed)

    def _allow(self, until: float) -> None:
        """Say until when, and how many, may come without asking."""
        self.cohort.until = until
        left = _ANY if self.cap == inf else int(self.cap) - self.in_flight
        self.cohort.most = left + self.cohort.held

    def _mark(self) -> None:
        """All that was ready to run when the marker was set has had its turn."""
        if self._marker_at is None or self._loop is None:
            return  # the gate was opened anew since
        now = self._time()
        took = now - self._marker_at
        self.longest = max(self.longest, took)
        if took > _LONG:
            self._lagged += took
            self._marker_at = now
            self._loop.call_soon(self._mark)
            self.cohort.until = -inf
        else:
            self._marker_at = None
            if not self._waits:
                self._allow(min(now + _LICENCE, self.due))
        if self._waits:
            self.wake()

    def _wake_in_time(self, now: float) -> None:
        if self._timer is None and (wait := self.wait_for_pace(now)) > 0:
            self._timer = self._clock.call_later(wait, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self.wake()

    def _first(self, holds: bool) -> tuple[int, Held, Callable[[], object]] | None:
        waiting = self._waiting[holds]
        while waiting:
            if waiting[0][1].is_first():
                return waiting[0]
            heapq.heappop(waiting)
        if self._waits and not self.waiting():
            self._waits = False
            for cohort in self._cohorts:
                cohort.asks = cohort is self.timed
        return None

    def _tell(self, error: Exception) -> None:
        context: dict[str, Any] = {"message": "a waiting call could not be served"}
        if self._loop is not None:
            self._loop.call_exception_handler({**context, "exception": error})
