"""Small things the tests share."""

import asyncio
from collections.abc import Callable, Hashable, Iterable
from fractions import Fraction

from aiolimit import Limiter
from aiolimit.clock import LoopClock, Timer
from aiolimit.testing import FakeClock


class CountingClock(LoopClock):
    """The real clock, which counts the timers that are set."""

    def __init__(self) -> None:
        self.timers = 0

    def call_later(self, delay: float, callback: Callable[[], object], /) -> Timer:
        self.timers += 1
        return super().call_later(delay, callback)


class HastyClock(FakeClock):
    """A fake clock whose timers fire before their time."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.timers = 0

    def call_later(self, delay: float, callback: Callable[[], object], /):  # type: ignore[no-untyped-def]
        self.timers += 1
        early = delay * self.share if delay > 1e-6 else delay
        return super().call_later(early, callback)


class StoppingClock(FakeClock):
    """A fake clock that can be made to fail whoever asks it."""

    fails = False

    def time(self) -> float:
        if self.fails:
            raise OSError("the clock stopped")
        return super().time()


class Callers:
    """Tasks that acquire, and a record of who was let in when."""

    def __init__(self, limiter: Limiter, clock: FakeClock) -> None:
        self.limiter, self.clock = limiter, clock
        self.admitted: list[tuple[float, object, Hashable, float]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def call(
        self, who: object, key: Hashable = "", cost: float = 1, **options: object
    ) -> asyncio.Task[None]:
        async def run() -> None:
            async with self.limiter.acquire(key, cost, **options):  # type: ignore[arg-type]
                self.admitted.append((self.clock.time(), who, key, cost))

        task = asyncio.create_task(run())
        self.tasks.append(task)
        return task

    def who(self) -> list[object]:
        return [who for _, who, _, _ in self.admitted]

    def times(self) -> list[float]:
        return [at for at, _, _, _ in self.admitted]

    async def end(self) -> list[BaseException | None]:
        return await asyncio.gather(*self.tasks, return_exceptions=True)


def worst(times: Iterable[float], period: float) -> int:
    """The most admissions of cost 1 that any half-open interval of that length holds."""
    exact = sorted(Fraction(at) for at in times)
    most = first = 0
    for last, at in enumerate(exact):
        while exact[first] <= at - Fraction(period):
            first += 1
        most = max(most, last - first + 1)
    return most
