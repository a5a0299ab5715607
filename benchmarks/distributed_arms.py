"""Limiters that share their counts over one Redis or Valkey, each as its documentation shows.

All have the same limit, which nobody reaches, and look at the answer. Each has as many connections
as it asks for: the client's pool raises an error where it is empty, so it is large enough. (A pool
that waits, with 16 or 64 connections, lets one caller in a hundred wait for half a second.)

What an arm has opened or started is closed when it ends: nothing of it runs in the turn of another.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import redis.asyncio as redis
from limits import RateLimitItemPerSecond
from limits.aio.storage import RedisStorage
from limits.aio.strategies import MovingWindowRateLimiter, SlidingWindowCounterRateLimiter
from pyrate_limiter import AbstractBucket, BucketFactory, Duration, Rate, RateItem, WallClock
from pyrate_limiter import Limiter as PyrateLimiter
from pyrate_limiter.buckets.redis_bucket import LuaScript, RedisBucket
from throttled.asyncio import RateLimiterType, Throttled
from throttled.asyncio import store as throttled_store

from aiolimit import Limiter
from aiolimit.redis import RedisStore

__all__ = ["ARMS", "LIMIT", "OURS", "Ask", "arm"]

LIMIT: Final = 1_000_000_000
_CONNECTIONS: Final = 600
_LEASE: Final = 0.0001  # of the limit: a hundred thousand at once
_REFUSED: Final = "a call was refused though there was room: the figures mean nothing"

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
    async with AsyncExitStack() as ending:
        if name.startswith(OURS):
            yield await _ours(name, url, ending)
        elif name.startswith("limits"):
            yield _limits(name, url, ending)
        elif name.startswith("throttled"):
            yield _throttled(name, url, ending)
        else:
            yield await _pyrate(url, ending)


async def _ours(name: str, url: str, ending: AsyncExitStack) -> Ask:
    lease = _LEASE if "lease" in name else None
    # The others wait as long as it takes; a short deadline would make us look quick.
    store = await ending.enter_async_context(RedisStore(url, timeout=5.0, lease=lease))
    limiter = Limiter(f"{LIMIT}/s", store=store)
    if lease is None:
        return limiter.acquire

    async def acquire(key: str) -> None:
        await limiter.acquire(key)
        await asyncio.sleep(0)  # or whoever has a lease would go on for the whole turn, alone

    return acquire


def _limits(name: str, url: str, ending: AsyncExitStack) -> Ask:
    options: Any = {"implementation": "redispy", "max_connections": _CONNECTIONS}
    storage = RedisStorage(f"async+{url}", **options)
    bridge: Any = storage.bridge
    ending.push_async_callback(bridge.storage.aclose)
    strategy = MovingWindowRateLimiter if "moving" in name else SlidingWindowCounterRateLimiter
    limiter, item = strategy(storage), RateLimitItemPerSecond(LIMIT)
    return lambda key: _checked(limiter.hit(item, key))


def _throttled(name: str, url: str, ending: AsyncExitStack) -> Ask:
    kind = RateLimiterType.GCRA if "GCRA" in name else RateLimiterType.SLIDING_WINDOW
    counts = throttled_store.RedisStore(
        server=url, options={"CONNECTION_POOL_KWARGS": {"max_connections": _CONNECTIONS}}
    )
    client: Any = counts._backend.get_client()
    ending.push_async_callback(client.aclose, close_connection_pool=True)  # it is not the client's
    throttle = Throttled(using=kind.value, quota=f"{LIMIT}/s", store=counts)

    async def limit(key: str) -> None:
        if (await throttle.limit(key)).limited:
            raise RuntimeError(_REFUSED)

    return limit


async def _pyrate(url: str, ending: AsyncExitStack) -> Ask:
    client = redis.from_url(url, max_connections=_CONNECTIONS)
    ending.push_async_callback(client.aclose)
    buckets = _PerName(client, await client.script_load(LuaScript.PUT_ITEM))
    ending.callback(buckets.dispose_all)
    limiter = PyrateLimiter(buckets)
    return lambda key: _checked(limiter.try_acquire_async(key, blocking=False))


async def _checked(answer: Awaitable[bool]) -> None:
    if not await answer:
        raise RuntimeError(_REFUSED)


class _PerName(BucketFactory):
    """A bucket for each key, after the `PerNameFactory` of its documentation."""

    def __init__(self, client: Any, script: str) -> None:
        self.clock = WallClock()  # as a bucket in Redis has, and processes have in common
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

    def dispose_all(self) -> None:
        """End the task that goes over all buckets every ten seconds."""
        for bucket in self.get_buckets():
            self.dispose(bucket)
