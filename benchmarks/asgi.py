"""What the ASGI middleware adds to a request.

The application answers at once, and there is neither socket nor server: any of them would cost
more than the middleware and hide it. It sends what a real one sends, because a middleware may
look at that or add to it. Each request has a scope of its own, as a server makes it.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

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
    """The row about the middleware."""
    return asyncio.run(_measure())


async def _measure() -> list[Row]:
    # Here, not above: whoever measures only calls needs no room for HTTP.
    from aiolimit.http.asgi import RateLimitMiddleware

    limiter = Limiter("1000000000/s")
    with_it = _subject("with", RateLimitMiddleware(_application, limiter=limiter))
    found = await interleave([_subject("without", _application), with_it])
    statistics = limiter.statistics()
    if not statistics.admitted or any(statistics.rejected.values()):
        raise RuntimeError(f"not every request was limited and admitted: {statistics}")
    added = found["with"] - found["without"]
    told = f"{times(added)} ({times(found['with'])}, {times(found['without'])})"
    return [
        Row(
            "ASGI middleware, added per request",
            "the application alone",
            told,
            "<= 3 µs",
            added <= _TARGET,
        )
    ]


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
