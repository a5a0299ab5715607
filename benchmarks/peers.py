"""The other limiters, each keyed, and used as its own documentation shows for async code.

All have the same limit, which nobody reaches: this is about what a call costs that may pass. The
period is a second, which is short: windows roll over while they are measured, aiolimit's entries
32 times as often. Where a call says whether it may pass, the answer is looked at, as every user
has to.
"""

import asyncio
from typing import Final

import aiolimiter
import asynciolimiter
from limits import RateLimitItemPerSecond
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import (
    MovingWindowRateLimiter,
    RateLimiter,
    SlidingWindowCounterRateLimiter,
)
from pyrate_limiter import (
    AbstractBucket,
    BucketAsyncWrapper,
    BucketFactory,
    Duration,
    InMemoryBucket,
    MonotonicClock,
    Rate,
    RateItem,
)
from pyrate_limiter import Limiter as PyrateLimiter
from throttled.asyncio import RateLimiterType, Throttled

from benchmarks.timing import Subject

__all__ = ["KEYS", "LIMIT", "all_peers", "turning_limits"]

LIMIT: Final = 1_000_000_000
KEYS: Final = tuple(f"user:{number}" for number in range(100))


def all_peers() -> list[Subject]:
    """All of them. To be called on the running loop."""
    return [
        _aiolimiter(),
        _limits("limits", SlidingWindowCounterRateLimiter(MemoryStorage())),
        _limits("limits, moving window", MovingWindowRateLimiter(MemoryStorage())),
        _throttled(),
        _pyrate("pyrate-limiter", wrapped=True),
        _pyrate("pyrate-limiter, bare bucket", wrapped=False),
        _asynciolimiter(),
    ]


def turning_limits() -> list[Subject]:
    """`limits`, with a turn of the loop after each call.

    It is alone in that it leaves work to a background task, which looks for expired keys.
    """
    return [
        _limits("limits", SlidingWindowCounterRateLimiter(MemoryStorage()), turning=True),
        _limits("limits, moving window", MovingWindowRateLimiter(MemoryStorage()), turning=True),
    ]


def _refused(name: str) -> RuntimeError:
    return RuntimeError(f"{name} refused a call that it had room for: the figures mean nothing")


def _aiolimiter() -> Subject:
    # It knows no keys: its users keep a dict. Nothing is ever dropped from this one.
    limiters = {key: aiolimiter.AsyncLimiter(LIMIT, 1) for key in KEYS}

    async def run(passes: int) -> None:
        for _ in range(passes):
            for key in KEYS:
                async with limiters[key]:
                    pass

    return Subject("aiolimiter", run, len(KEYS))


def _limits(name: str, limiter: RateLimiter, *, turning: bool = False) -> Subject:
    item = RateLimitItemPerSecond(LIMIT)

    async def run(passes: int) -> None:
        for _ in range(passes):
            for key in KEYS:
                if not await limiter.hit(item, key):
                    raise _refused(name)
                if turning:
                    await asyncio.sleep(0)

    return Subject(name, run, len(KEYS))


def _throttled() -> Subject:
    throttle = Throttled(using=RateLimiterType.SLIDING_WINDOW.value, quota=f"{LIMIT}/s")

    async def run(passes: int) -> None:
        for _ in range(passes):
            for key in KEYS:
                if (await throttle.limit(key)).limited:
                    raise _refused("throttled-py")

    return Subject("throttled-py", run, len(KEYS))


class _PerName(BucketFactory):
    """A bucket for each key, after the `PerNameFactory` of its documentation."""

    def __init__(self, *, wrapped: bool) -> None:
        self.clock = MonotonicClock()
        self.buckets: dict[str, AbstractBucket] = {}
        self.wrapped = wrapped

    def wrap_item(self, name: str, weight: int = 1) -> RateItem:
        return RateItem(name, self.clock.now(), weight=weight)

    def get(self, item: RateItem) -> AbstractBucket:
        if item.name not in self.buckets:
            bucket: AbstractBucket = InMemoryBucket([Rate(LIMIT, Duration.SECOND)])
            if self.wrapped:
                bucket = BucketAsyncWrapper(bucket)
            self.schedule_leak(bucket)
            self.buckets[item.name] = bucket
        return self.buckets[item.name]


def _pyrate(name: str, *, wrapped: bool) -> Subject:
    # For asyncio it says: "With a sync bucket, wrap it in BucketAsyncWrapper".
    limiter = PyrateLimiter(_PerName(wrapped=wrapped))

    async def run(passes: int) -> None:
        for _ in range(passes):
            for key in KEYS:
                if not await limiter.try_acquire_async(key):
                    raise _refused(name)

    return Subject(name, run, len(KEYS))


def _asynciolimiter() -> Subject:
    # It spaces calls by a timer each, so the loop has to turn: that is in the figure.
    limiters = {key: asynciolimiter.Limiter(LIMIT) for key in KEYS}

    async def run(passes: int) -> None:
        for _ in range(passes):
            for key in KEYS:
                await limiters[key].wait()

    return Subject("asynciolimiter", run, len(KEYS))
