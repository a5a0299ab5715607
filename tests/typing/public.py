"""What a user's type checker sees. Read by mypy in strict mode, never run."""

from collections.abc import Mapping
from typing import assert_type

from aiolimit import (
    UNLIMITED,
    CostTooHigh,
    Explanation,
    Limiter,
    Permit,
    Quota,
    Rate,
    RateLimited,
    Statistics,
)
from aiolimit.errors import Reason
from aiolimit.testing import FakeClock

limiter = Limiter("100/s", Rate(5, per=2.5), name="x", burst=2, clock=FakeClock())


async def use() -> None:
    async with limiter.acquire("k") as permit:
        assert_type(permit, Permit)
    assert_type(await limiter.acquire(("a", 1), cost=2.5, max_wait=None, limit=UNLIMITED), Permit)
    assert_type(await limiter.acquire(42, limit=(3, UNLIMITED)), Permit)
    assert_type(limiter.try_acquire("k", limit=0), bool)
    assert_type(limiter.peek("k"), Quota)
    assert_type(limiter.statistics(), Statistics)
    assert_type(limiter.statistics().rejected, Mapping[Reason, int])
    assert_type(limiter.explain("k"), Explanation)
    assert_type(permit.waited, float)
    try:
        await limiter.acquire()
    except CostTooHigh as error:
        assert_type(error.retry_after, float | None)
    except RateLimited as error:
        assert_type(error.rate, Rate)


@limiter.limited(key=lambda user, *, page: user, cost=2)
async def search(user: str, *, page: int) -> list[str]:
    return [user, str(page)]


async def decorated() -> None:
    assert_type(await search("a", page=1), list[str])
    await search(1, page=1)  # type: ignore[arg-type]
    await limiter.acquire({})  # type: ignore[arg-type]
    await limiter.acquire("k", limit="5")  # type: ignore[arg-type]
    limiter.update(5)  # type: ignore[arg-type]
