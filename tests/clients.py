"""Three clients with one face, and a server that does as it is told, for tests over sockets."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import httpx
import httpx2

from aiolimit import Permit
from aiolimit.http import aiohttp_client
from aiolimit.http import httpx as with_httpx
from aiolimit.http import httpx2 as with_httpx2
from aiolimit.http.client import permits_of
from tests.serving import serving

CLIENTS = ("aiohttp", "httpx", "httpx2")


@dataclass
class Answer:
    """What a client was given."""

    status: int
    headers: dict[str, str]
    body: bytes
    permits: tuple[Permit, ...] = ()


Ask = Callable[..., Coroutine[Any, Any, Answer]]


@contextlib.asynccontextmanager
async def client(
    kind: str, *limits: Any, timeout: float | None = 60, **options: Any
) -> AsyncIterator[Ask]:
    """A client of that kind under those limits; its connections are few, so that leaks show."""
    if kind == "aiohttp":
        middleware = aiohttp_client.RateLimitMiddleware(*limits, **options)
        async with aiohttp.ClientSession(
            middlewares=(middleware,),
            connector=aiohttp.TCPConnector(limit=8),
            timeout=aiohttp.ClientTimeout(total=timeout),
        ) as session:

            async def by_aiohttp(url: str, method: str = "GET", **more: Any) -> Answer:
                if "timeout" in more:
                    more["timeout"] = aiohttp.ClientTimeout(total=more["timeout"])
                async with session.request(method, url, **more) as answer:
                    headers = {name.lower(): value for name, value in answer.headers.items()}
                    body = await answer.read()
                    return Answer(answer.status, headers, body, permits_of(answer))

            yield by_aiohttp
        return
    lib: Any = {"httpx": httpx, "httpx2": httpx2}[kind]
    room: Any = {"httpx": with_httpx, "httpx2": with_httpx2}[kind]
    inner = lib.AsyncHTTPTransport(limits=lib.Limits(max_connections=8))
    transport = room.RateLimitTransport(*limits, transport=inner, **options)
    async with lib.AsyncClient(
        transport=transport, timeout=lib.Timeout(60, pool=timeout), follow_redirects=True
    ) as session:

        async def by_httpx(url: str, method: str = "GET", **more: Any) -> Answer:
            if "timeout" in more:
                more["timeout"] = lib.Timeout(60, pool=more["timeout"])
            if "data" in more:
                more["content"] = more.pop("data")
            answer = await session.request(method, url, **more)
            return Answer(
                answer.status_code, dict(answer.headers), answer.content, permits_of(answer)
            )

        yield by_httpx


def with_each_client(scenario: Callable[[str], Coroutine[Any, Any, None]]) -> Any:
    """A test that plays its scenario with each kind of client, all at the same time.

    Most of it is waiting, so one after the other would take three times as long.
    """

    async def test() -> None:
        outcomes = await asyncio.gather(*map(scenario, CLIENTS), return_exceptions=True)
        failed = []
        for kind, outcome in zip(CLIENTS, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                outcome.add_note(f"with {kind}")
                failed.append(outcome)
        if failed:
            raise failed[0] if len(failed) == 1 else BaseExceptionGroup("with several", failed)

    test.__name__ = scenario.__name__
    test.__doc__ = scenario.__doc__
    return test


Headers = dict[str, str]


@dataclass
class Server:
    """An ASGI application that answers by a script, and remembers who came when.

    script: what to answer, in order: a status with headers, or a function of the number of the
        request; after the last one, 200.
    """

    script: Sequence[tuple[int, Headers]] = ()
    decide: Callable[["Server", dict[str, Any]], tuple[int, Headers]] | None = None
    times: list[float] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    body: bytes = b"x" * 100
    delay: float = 0.0
    address: str = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.times.append(time.monotonic())
        self.paths.append(scope["path"])
        number = len(self.times) - 1
        status, headers = self.script[number] if number < len(self.script) else (200, {})
        if self.decide is not None:
            status, headers = self.decide(self, scope)
        self.statuses.append(status)
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.bodies.append(body)
        if self.delay:
            await asyncio.sleep(self.delay)
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        if "content-length" not in headers:
            raw.append((b"content-length", b"%d" % len(self.body)))
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": self.body})

    @property
    def gaps(self) -> list[float]:
        """Seconds between one request and the next."""
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]


@contextlib.asynccontextmanager
async def server(*script: tuple[int, Headers], **options: Any) -> AsyncIterator[Server]:
    """Such a server, on a free port."""
    made = Server(script, **options)
    async with serving(made, lifespan="off", date_header=False) as host:
        made.address = f"http://{host}"
        yield made
