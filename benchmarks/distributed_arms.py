"""Limiters that share their counts over one Redis or Valkey, each as its documentation shows.

All have the same limit, which nobody reaches, and look at the answer. Each has as many connections
as it asks for: where the client's pool would raise an error when it is empty, it is a pool that
waits, or large enough.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import redis.asyncio as redis
from limits import RateLimitItemPerSecond
from limits.aio.storage import RedisStorage
from limits.aio.strategies import MovingWindowRateLimiter, SlidingWindowCounterRateLimiter
from pyrate_limiter import AbstractBucket, BucketFactory, Duration, MonotonicClock, Rate, RateItem
from pyrate_limiter import Limiter as PyrateLimiter
from pyrate_limiter.buckets.redis_bucket import LuaScript, RedisBucket
from throttled.asyncio import RateLimiterType, Throttled
from throttled.asyncio import store as throttled_store

from aiolimit import Limiter
from aiolimit.redis import RedisStore

__all__ = ["ARMS", "LIMIT", "Ask", "arm"]

LIMIT: Final = 1_000_000_000
_CONNECTIONS: Final = 600

#: One call for a key, which has to pass.
Ask = Callable[[str], Awaitable[object]]

OURS: Final = "aiolimit"
ARMS: Final = (
    OURS,
    "aiolimit, lease",
    "limits",
    "limits, moving window",
    "throttled-py",
    "throttled-py, GCRA",
    "pyrate-limiter",
)


@asynccontextmanager
async def arm(name: str, url: str) -> AsyncIterator[Ask]:
    """One of them, connected."""
    if name.startswith("aiolimit"):
        lease = 0.0001 if "lease" in name else None
        # The others wait as long as it takes; a short deadline would make us look quick.
        async with RedisStore(url, timeout=5.0, lease=lease) as store:
            yield Limiter(f"{LIMIT}/s", store=store).acquire
    elif name.startswith("limits"):
        storage = RedisStorage(
            f"async+{url}", implementation="redispy", max_connections=_CONNECTIONS
        )
        strategy = MovingWindowRateLimiter if "moving" in name else SlidingWindowCounterRateLimiter
        limiter, item = strategy(storage), RateLimitItemPerSecond(LIMIT)
        yield lambda key: _checked(limiter.hit(item, key))
    elif name.startswith("throttled"):
        kind = RateLimiterType.GCRA if "GCRA" in name else RateLimiterType.SLIDING_WINDOW
        counts = throttled_store.RedisStore(
            server=url, options={"CONNECTION_POOL_KWARGS": {"max_connections": _CONNECTIONS}}
        )
        throttle = Throttled(using=kind.value, quota=f"{LIMIT}/s", store=counts)

        async def limited(key: str) -> None:
            if (await throttle.limit(key)).limited:
                raise RuntimeError(f"{name} refused")

        yield limited
    else:
        client = redis.from_url(url, max_connections=_CONNECTIONS)
        pyrate = PyrateLimiter(_PerName(client, await client.script_load(LuaScript.PUT_ITEM)))
        yield lambda key: _checked(pyrate.try_acquire_async(key))
        await client.aclose()


async def _checked(answer: Awaitable[bool]) -> None:
    if not await answer:
        raise RuntimeError("it refused a call that it had room for: the figures mean nothing")


class _PerName(BucketFactory):
    """A bucket for each key, after the `PerNameFactory` of its documentation."""

    def __init__(self, client: Any, script: str) -> None:
        self.clock = MonotonicClock()
        self.client, self.script = client, script
        self.buckets: dict[str, AbstractBucket] = {}

    def wrap_item(self, name: str, weight: int = 1) -> RateItem:
        return RateItem(name, self.clock.now(), weight=weight)

    def get(self, item: RateItem) -> AbstractBucket:
        bucket = self.buckets.get(item.name)
        if bucket is None:
            rates = [Rate(LIMIT, Duration.SECOND)]
            bucket = RedisBucket(rates, self.client, f"pyrate:{item.name}", self.script)
            self.schedule_leak(bucket)
            self.buckets[item.name] = bucket
        return bucket
