"""What a user's type checker sees. Read by mypy in strict mode, never run."""

from collections.abc import Mapping
from typing import Literal, assert_type

from aiolimit import (
    UNLIMITED,
    CostTooHigh,
    Explanation,
    Limiter,
    LoadController,
    LoadState,
    Overloaded,
    Permit,
    Quota,
    Rate,
    RateLimited,
    Statistics,
    WarmUp,
)
from aiolimit.errors import Reason
from aiolimit.http import aiohttp_client, httpx2
from aiolimit.http.address import ClientAddress
from aiolimit.http.asgi import RateLimitMiddleware, is_preflight
from aiolimit.http.asgi_types import Receive, Scope, Send
from aiolimit.http.feedback import Feedback, read
from aiolimit.redis import RedisStore
from aiolimit.testing import FakeClock

limiter = Limiter("100/s", Rate(5, per=2.5), name="x", burst=2, clock=FakeClock())
controller = LoadController(cpu=0.9, sensors={"queue": lambda: 0.5}, without={"gc"}, dry_run=True)
bent = Limiter("100/s", warm_up=WarmUp(0.5, over=30), load=controller)


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
    except Overloaded as error:
        assert_type(error.retry_after, float)
        assert_type(error.binding, str)
    except CostTooHigh as error:
        assert_type(error.retry_after, float | None)
    except RateLimited as error:
        assert_type(error.rate, Rate)


async def under_control() -> None:
    async with controller as entered:
        assert_type(entered, LoadController)
        assert_type(controller.state, LoadState)
        assert_type(controller.state.rate, float)
        assert_type(bent.explain().warmth, float | None)
        assert_type(bent.load, LoadController | None)
    Limiter("100/s", warm_up=10)  # type: ignore[arg-type]
    WarmUp(reset="soft")  # type: ignore[arg-type]


@limiter.limited(key=lambda user, *, page: user, cost=2)
async def search(user: str, *, page: int) -> list[str]:
    return [user, str(page)]


async def decorated() -> None:
    assert_type(await search("a", page=1), list[str])
    await search(1, page=1)  # type: ignore[arg-type]
    await limiter.acquire({})  # type: ignore[arg-type]
    await limiter.acquire("k", limit="5")  # type: ignore[arg-type]
    limiter.update(5)  # type: ignore[arg-type]


async def told_by_servers() -> None:
    limiter.hold("k", seconds=30)
    limiter.restrict("k", remaining=3, seconds=30, refill=0.5, name="tokens")
    limiter.hold("k", 30)  # type: ignore[call-arg]
    feedback = read({"retry-after": "5"}, 429, now=0.0)
    assert_type(feedback, Feedback)
    assert_type(feedback.retry_after, float | None)
    assert_type(feedback.binding.remaining, float | None)
    read([(b"retry-after", b"5")], cap=5)


def http() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None: ...

    async def user(scope: Scope) -> str:
        return "user"

    RateLimitMiddleware(app, limiter, key=user, exempt=["/health", is_preflight], headers=None)
    RateLimitMiddleware(app, limiter, key=ClientAddress(trusted_proxies=["10.0.0.0/8"]))
    RateLimitMiddleware(app, limiter, headers="draft-7")  # type: ignore[arg-type]
    RateLimitMiddleware(app, limiter, key="user")  # type: ignore[arg-type]
    charge = httpx2.Charge(limiter, cost=lambda request: 5, unit="tokens")
    httpx2.RateLimitTransport(limiter, charge, retries=2, key=lambda request: request.url.host)
    aiohttp_client.RateLimitMiddleware(limiter, key=lambda request: request.url.host)
    assert_type(httpx2.permits_of(object()), tuple[Permit, ...])


async def shared() -> None:
    async with RedisStore("redis://localhost", on_store_error="closed", lease=0.1) as store:
        limiter = Limiter("10/s", store=store)
        assert_type(await limiter.try_acquire_async("k", 2), bool)
        assert_type(await limiter.peek_async("k"), Quota)
        assert_type(await limiter.reset_async(), None)
        permit = await limiter.acquire("k")
        assert_type(permit.source, Literal["store", "local", "open", "closed"])
