"""What the ASGI middleware adds to a request, and what others add to the same application.

Two applications. One answers at once, and there is neither socket nor server: any of them would
cost more than the middleware and hide it. It sends what a real one sends, because a middleware may
look at that or add to it. The other is a FastAPI service with one route, as slowapi and
fastapi-limiter need one. Each request has a scope of its own, as a server makes it.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from fastapi import Depends, FastAPI, Request, Response

from aiolimit import Limiter
from benchmarks.report import Row, times
from benchmarks.timing import Subject, interleave

__all__ = ["measure"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

_TARGET: Final = 3e-6  # seconds
_CLIENTS: Final = tuple((f"203.0.113.{number}", 50_000 + number) for number in range(100))
_SCOPE: Final[dict[str, Any]] = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.4"},
    "http_version": "1.1",
    "method": "GET",
    "scheme": "http",
    "path": "/items/42",
    "raw_path": b"/items/42",
    "query_string": b"page=3&size=20",
    "root_path": "",
    "server": ("192.0.2.1", 8000),
    "headers": [
        (b"host", b"api.example.org"),
        (b"user-agent", b"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
        (b"accept", b"application/json, text/plain, */*"),
        (b"accept-language", b"en-US,en;q=0.7,de;q=0.3"),
        (b"accept-encoding", b"gzip, deflate, br, zstd"),
        (b"authorization", b"Bearer 0123456789abcdef0123456789abcdef"),
        (b"referer", b"https://www.example.org/items"),
        (b"origin", b"https://www.example.org"),
        (b"connection", b"keep-alive"),
        (b"cookie", b"session=0123456789abcdef; theme=dark"),
        (b"priority", b"u=1, i"),
    ],
}
_BODY: Final = b'{"id": 42}'
_HEADERS: Final = [(b"content-type", b"application/json"), (b"content-length", b"10")]


def measure() -> list[Row]:
    """The rows about the middleware."""
    return asyncio.run(_measure())


async def _measure() -> list[Row]:
    # Here, not above: whoever measures only calls needs no room for HTTP.
    from aiolimit.http.asgi import RateLimitMiddleware

    admitting, refusing = Limiter("1000000000/s"), Limiter("1/h")
    found = await interleave(
        [
            _subject("without", _application),
            _subject("admitted", RateLimitMiddleware(_application, limiter=admitting)),
            _subject("refused", RateLimitMiddleware(_application, limiter=refusing)),
        ]
    )
    if any(admitting.statistics().rejected.values()) or refusing.statistics().admitted != 100:
        raise RuntimeError(f"not as planned: {admitting.statistics()} {refusing.statistics()}")
    rows = []
    for outcome in ("admitted", "refused"):
        added = found[outcome] - found["without"]
        told = f"{times(added)} ({times(found[outcome])}, {times(found['without'])})"
        what = f"ASGI middleware with its fields, added per request that is {outcome}"
        rows.append(Row(what, "the application alone", told, "<= 3 µs", added <= _TARGET))
    return rows + await _measure_services()


async def _measure_services() -> list[Row]:
    """The same FastAPI service under each of the limiters for it, admitting and refusing."""
    found = await interleave(
        [
            _subject(f"{name} {outcome}", _service(name, rate))
            for name in ("none", *_PEERS)
            for outcome, rate in (("admitted", "1000000000"), ("refused", "1"))
        ],
        rounds=15,
    )
    rows = []
    for name in _PEERS:
        told = []
        for outcome in ("admitted", "refused"):
            added = found[f"{name} {outcome}"] - found["none admitted"]
            told.append(f"{times(added)} {outcome}" if added >= 0 else f"none {outcome}")
        rows.append(
            Row(
                f"{name}, added per request to a FastAPI service",
                f"the service alone ({times(found['none admitted'])})",
                ", ".join(told),
            )
        )
    return rows


_PEERS: Final = ("our middleware", "our dependency", "slowapi", "fastapi-limiter")


def _service(name: str, limit: str) -> Application:
    """A service with one route, which lets each address through so often an hour."""
    app, depends, decorate = FastAPI(), [], lambda endpoint: endpoint
    if name == "our middleware":
        from aiolimit.http.asgi import RateLimitMiddleware

        app.add_middleware(RateLimitMiddleware, limiter=Limiter(f"{limit}/h"))
    elif name == "our dependency":
        from aiolimit.http.fastapi import RateLimit

        depends = [Depends(RateLimit(Limiter(f"{limit}/h")))]
    elif name == "slowapi":
        import slowapi
        import slowapi.util

        limiter = slowapi.Limiter(slowapi.util.get_remote_address, headers_enabled=True)
        app.state.limiter = limiter
        app.add_exception_handler(slowapi.errors.RateLimitExceeded, _slowapi_refuses)
        decorate = limiter.limit(f"{limit}/hour")
    elif name == "fastapi-limiter":
        import fastapi_limiter.depends
        import pyrate_limiter

        rate = pyrate_limiter.Rate(int(limit), pyrate_limiter.Duration.HOUR)
        depends = [
            Depends(fastapi_limiter.depends.RateLimiter(limiter=pyrate_limiter.Limiter(rate)))
        ]

    @app.get("/items/{item}", dependencies=depends)
    @decorate
    async def route(request: Request, response: Response, item: int) -> dict[str, int]:  # noqa: ARG001
        return {"id": item}

    return app


def _slowapi_refuses(request: Request, error: Exception) -> Response:
    import slowapi

    answer: Any = slowapi._rate_limit_exceeded_handler
    refused: Response = answer(request, error)
    return refused


async def _application(_scope: Message, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
    await send({"type": "http.response.body", "body": _BODY})


async def _receive() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _send(_message: Message) -> None:
    pass


def _subject(name: str, application: Application) -> Subject:
    async def run(passes: int) -> None:
        for _ in range(passes):
            for client in _CLIENTS:
                await application({**_SCOPE, "client": client}, _receive, _send)

    return Subject(name, run, len(_CLIENTS))
