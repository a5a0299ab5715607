"""For tests: a clock that moves when it is told to, so that an hour of waiting takes no time.

```python
clock = FakeClock()
limiter = Limiter("1/h", clock=clock)
```

In a plain test, move it with `jump`: `limiter.try_acquire` sees the new time. In an async test
let tasks wait and `await clock.advance(3600)`: it stops at every timer on the way and lets the
woken tasks run. Or make it `FakeClock(autojump=True)`: whenever every task waits, it moves to the
next timer by itself, so that a test reads like the program it tests. It works with asyncio's
loops, whether pytest-asyncio, anyio or `asyncio.run` started them.
"""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count
from math import fsum, inf, nextafter
from typing import Final

from aiolimit.arguments import number

__all__ = ["FakeClock"]

_QUIET_ROUNDS: Final = 3  # a call_soon inside a call_soon may still wake a task
_BUSY_ROUNDS: Final = 100_000
_OUTSIDE: Final = 0.0002  # seconds of real time between two looks for an answer from outside


class _Timer:
    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """A clock for `Limiter(clock=)`. All times are seconds.

    start: what `time` says first.
    autojump: move to the next timer whenever all tasks of the loop wait. Only for tests that
        wait in this clock's time alone: a task that waits for a socket waits, too.
    """

    def __init__(self, start: float = 0.0, *, autojump: bool = False) -> None:
        self.autojump = autojump
        self._now = float(number(start, "start"))
        self._set_by = 0.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._order = count()
        self._watched: asyncio.AbstractEventLoop | None = None
        self._outside: list[Callable[[], bool]] = []

    def time(self) -> float:
        """What the clock says."""
        return self._now + self._set_by

    def call_later(self, delay: float, callback: Callable[[], object], /) -> _Timer:
        """Call `callback` once the clock has moved on by `delay`."""
        timer = _Timer(callback)
        delay = max(0.0, delay)
        heapq.heappush(self._timers, (self._after(delay), next(self._order), timer))
        loop = _running_loop()
        if loop is not None:
            if delay == 0.0:
                loop.call_soon(self._fire_due)
            if self.autojump and self._watched is not loop:
                self._watched = loop
                loop.call_soon(self._watch, 0)
        return timer

    def jump(self, seconds: float) -> None:
        """Let time pass at once. Timers on the way are called, each at its time; no task runs."""
        target = self._after(seconds)
        while self._timers and self._timers[0][0] <= target:
            self._now = max(self._now, self._timers[0][0])
            self._fire_due()
        self._now = target

    async def advance(self, seconds: float) -> None:
        """Let time pass, and at every timer on the way let all tasks run until they wait."""
        target = self._after(seconds)
        await self.settle()
        while self._timers and self._timers[0][0] <= target:
            self._now = max(self._now, self._timers[0][0])
            self._fire_due()
            await self.settle()
        self._now = target

    async def sleep(self, seconds: float) -> None:
        """Wait in this clock's time."""
        self._after(seconds)  # refuses what is no time to sleep
        future = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        timer = self.call_later(seconds, wake)
        try:
            await future
        finally:
            timer.cancel()

    def set_by(self, seconds: float) -> None:
        """Set the clock by so much, back if negative, as an operator might: no time passes."""
        self._set_by += number(seconds, "seconds")

    def waits_for(self, is_awaited: Callable[[], bool]) -> None:
        """Stand still while an answer from outside is awaited, such as that of a store.

        is_awaited: asked again and again whether one is. `Limiter(store=)` tells of its own.
        """
        self._outside.append(is_awaited)

    async def settle(self) -> None:
        """Let all other tasks run until each of them waits. Time stands still."""
        me = asyncio.current_task()
        quiet = 0
        for _ in range(_BUSY_ROUNDS):
            await asyncio.sleep(0)
            while self._awaits_outside():
                quiet = 0
                await asyncio.sleep(_OUTSIDE)
            quiet = quiet + 1 if _all_wait(asyncio.all_tasks() - {me}) else 0
            if quiet == _QUIET_ROUNDS:
                return
        raise RuntimeError(f"tasks were still busy after {_BUSY_ROUNDS} rounds of the loop")

    def _after(self, seconds: float) -> float:
        """The time after that has passed: not a bit less, as a sum of floats may be."""
        seconds = number(seconds, "seconds")
        if not 0 <= seconds < inf:
            raise ValueError(
                f"seconds must be finite and 0 or more, not {seconds!r}; `set_by` sets a clock back"
            )
        after = self._now + seconds
        return after if fsum((after, -self._now, -seconds)) >= 0 else nextafter(after, inf)

    def _awaits_outside(self) -> bool:
        return any(is_awaited() for is_awaited in self._outside)

    def _fire_due(self) -> None:
        # Only what was set before: a timer set by a timer comes in its own turn of the loop.
        newest = next(self._order)
        while self._timers and self._timers[0][:2] < (self._now, newest):
            timer = heapq.heappop(self._timers)[2]
            if timer.callback is not None:
                timer.callback()

    def _watch(self, quiet: int) -> None:
        loop = asyncio.get_running_loop()
        if self._awaits_outside():
            loop.call_later(_OUTSIDE, self._watch, 0)
            return
        quiet = quiet + 1 if _all_wait(asyncio.all_tasks(loop)) else 0
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)  # cancelled: nothing to move to
        if quiet == _QUIET_ROUNDS and self._timers:
            self._now = max(self._now, self._timers[0][0])
            self._fire_due()
            quiet = 0
        if self._timers:
            loop.call_soon(self._watch, quiet)
        else:
            self._watched = None


def _all_wait(tasks: set[asyncio.Task[object]]) -> bool:
    """Whether each task waits for something that is yet to come.

    asyncio has no public word for it; anyio's `wait_all_tasks_blocked` reads the same attribute.
    """
    for task in tasks:
        future = getattr(task, "_fut_waiter", None)
        if future is None or future.done():
            return False
    return True


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
