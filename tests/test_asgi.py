"""The ASGI middleware, called directly and on a real server."""

import asyncio
import json
import logging
import re
from typing import Any

import anyio
import httpx2
import pytest
import websockets
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket

from aiolimit import Limiter, RateLimited
from aiolimit.http import address
from aiolimit.http.asgi import RateLimitMiddleware
from aiolimit.http.fields import retry_after
from aiolimit.testing import FakeClock
from tests.serving import serving


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text(await socket.receive_text())
    await socket.close()


ROUTES = [
    Route("/", hello),
    Route("/health", hello),
    WebSocketRoute("/echo", echo),
    Mount("/mounted", Starlette(routes=[Route("/deep", hello)])),
]


async def call(app: Any, **scope: Any) -> list[dict[str, Any]]:
    """Call an ASGI application and give what it sent."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect" if scope.get("type") == "websocket" else "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    whole = {"type": "http", "path": "/", "headers": [], "client": ("10.0.0.1", 5000), **scope}
    await app(whole, receive, send)
    return sent


async def works(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def status(app: Any, **scope: Any) -> int:
    code: int = (await call(app, **scope))[0]["status"]
    return code


async def test_a_refusal() -> None:
    clock = FakeClock()
    app = RateLimitMiddleware(works, Limiter("2/min", clock=clock))
    assert [await status(app) for _ in range(2)] == [204, 204]
    clock.jump(17.2)
    start, body = await call(app)
    assert start["status"] == 429
    assert dict(start["headers"]) == {
        b"content-type": b"application/json",
        b"content-length": str(len(body["body"])).encode(),
        b"retry-after": b"43",
    }
    assert json.loads(body["body"]) == {
        "error": "rate limit exceeded",
        "limit": 2,
        "per": 60.0,
        "retry_after": 43,
    }
    clock.jump(43)
    assert await status(app) == 204


@pytest.mark.parametrize(
    ("seconds", "value"), [(0.0, 1), (1e-9, 1), (0.2, 1), (1.0, 1), (1.000001, 2), (59.2, 60)]
)
def test_retry_after_is_rounded_up_and_at_least_one(seconds: float, value: int) -> None:
    assert retry_after(seconds) == value


async def test_a_limit_of_nothing_has_no_time_to_come_back() -> None:
    start, body = await call(RateLimitMiddleware(works, Limiter("0/s")))
    assert start["status"] == 429
    assert b"retry-after" not in dict(start["headers"])
    assert json.loads(body["body"])["retry_after"] is None


async def test_the_key_is_the_peer_whatever_headers_and_ports_say() -> None:
    app = RateLimitMiddleware(works, Limiter("1/min"))
    assert await status(app) == 204
    for name in ("x-forwarded-for", "forwarded", "x-real-ip", "x_forwarded_for", "client-ip"):
        forged = [(name.encode(), b"203.0.113.7")]
        assert await status(app, headers=forged, client=("10.0.0.1", 6000)) == 429
    assert await status(app, client=("10.0.0.2", 5000)) == 204


async def test_a_key_of_the_scope() -> None:
    app = RateLimitMiddleware(works, Limiter("1/min"), key=lambda scope: scope["path"])
    assert [await status(app, path=path) for path in ("/a", "/b", "/a")] == [204, 204, 429]


async def test_without_a_peer_all_share_one_limit_and_the_log_says_so(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "_told", set())
    app = RateLimitMiddleware(works, Limiter("2/min"))
    with caplog.at_level(logging.WARNING, "aiolimit"):
        codes = [await status(app, client=None) for _ in range(3)]
    assert codes == [204, 204, 429]
    assert len(caplog.records) == 1
    assert "give RateLimitMiddleware a key function" in caplog.text


async def test_exempt() -> None:
    app = RateLimitMiddleware(works, Limiter("1/min"), exempt={"/health"})
    assert [await status(app, path="/health") for _ in range(3)] == [204] * 3
    assert [await status(app) for _ in range(2)] == [204, 429]
    preflight = RateLimitMiddleware(
        works, Limiter("1/min"), exempt=lambda scope: scope["method"] == "OPTIONS"
    )
    assert [await status(preflight, method="OPTIONS") for _ in range(3)] == [204] * 3


async def test_a_bounded_wait() -> None:
    clock = FakeClock(autojump=True)
    app = RateLimitMiddleware(works, Limiter("1/s", clock=clock), max_wait=1.5)
    assert await status(app) == 204
    codes = await asyncio.gather(*(status(app) for _ in range(3)))
    assert sorted(codes) == [204, 429, 429]


async def test_what_the_application_raises_leaves_unchanged_and_it_is_called_once() -> None:
    calls = 0

    async def fails(scope: Any, receive: Any, send: Any) -> None:
        nonlocal calls
        calls += 1
        await inner.acquire("x", max_wait=0)
        await inner.acquire("x", max_wait=0)

    inner = Limiter("1/min", name="inner")
    limiter = Limiter("5/min")
    with pytest.raises(RateLimited, match="inner"):
        await call(RateLimitMiddleware(fails, limiter))
    assert calls == 1
    assert limiter.statistics().in_flight == 0
    assert limiter.statistics().completed == 1


async def test_in_flight_until_the_call_ends_whatever_ends_it() -> None:
    limiter = Limiter("9/min")
    entered = asyncio.Event()

    async def hangs(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        entered.set()
        await asyncio.Event().wait()

    app = RateLimitMiddleware(hangs, limiter)
    task = asyncio.create_task(call(app))
    await entered.wait()
    assert limiter.statistics().in_flight == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert limiter.statistics().in_flight == 0
    with anyio.move_on_after(0.01):
        await call(app)
    assert limiter.statistics().in_flight == 0


async def test_lifespan_passes() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    limiter = Limiter("0/s")
    await call(RateLimitMiddleware(app, limiter), type="lifespan")
    assert seen == ["lifespan"]


async def test_a_websocket_is_closed_before_it_is_accepted() -> None:
    app = RateLimitMiddleware(works, Limiter("1/min"))
    assert await status(app) == 204
    sent = await call(app, type="websocket")
    assert sent == [{"type": "websocket.close", "code": 1013, "reason": ""}]
    start, body = await call(app, type="websocket", extensions={"websocket.http.response": {}})
    assert start["type"] == "websocket.http.response.start"
    assert start["status"] == 429
    assert body["type"] == "websocket.http.response.body"


def test_two_clients_on_one_app() -> None:
    """Each TestClient runs a loop of its own, in a thread of its own."""
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limiter=Limiter("3/min"))

    @app.get("/")
    async def root() -> str:
        return "here"

    for codes in ([200, 200], [200, 429]):
        with TestClient(app) as client:
            assert [client.get("/").status_code for _ in range(2)] == codes
    assert [TestClient(app).get("/").status_code for _ in range(2)] == [429, 429]


def test_a_refusal_passes_an_outer_cors_middleware() -> None:
    app = Starlette(routes=ROUTES)
    app.add_middleware(RateLimitMiddleware, limiter=Limiter("1/min"))
    app.add_middleware(CORSMiddleware, allow_origins=["https://example.com"])
    client = TestClient(app, headers={"origin": "https://example.com"})
    for code in (200, 429):
        answer = client.get("/")
        assert answer.status_code == code
        assert answer.headers["access-control-allow-origin"] == "https://example.com"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limiter": "100/min"}, "limiter must be a Limiter, not '100/min'"),
        ({"key": "user"}, "key must be a function of the scope, not 'user'"),
        ({"exempt": "/health"}, "exempt must be paths or a function of the scope, not '/health'"),
        ({"exempt": [1]}, "not [1]"),
        ({"max_wait": "1"}, "max_wait must be a number, not '1'"),
    ],
)
def test_options_are_checked_at_construction(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        RateLimitMiddleware(works, **{"limiter": Limiter("1/s"), **options})


async def test_on_a_real_server() -> None:
    limiter = Limiter("4/min")
    app = RateLimitMiddleware(Starlette(routes=ROUTES), limiter, exempt={"/health"})
    # uvicorn itself believes X-Forwarded-For from 127.0.0.1 unless told not to.
    async with (
        serving(app, proxy_headers=False) as host,
        httpx2.AsyncClient(base_url=f"http://{host}") as client,
    ):
        async with websockets.connect(f"ws://{host}/echo") as socket:
            await socket.send("over the wire")
            assert await socket.recv() == "over the wire"
        # Mounted applications, unknown paths: what the limit cannot name it limits all the same.
        codes = [(await client.get(path)).status_code for path in ("/mounted/deep", "/no", "/")]
        assert codes == [200, 404, 200]
        refused = await client.get("/mounted/deep", headers={"x-forwarded-for": "203.0.113.7"})
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "60"
        assert refused.json()["limit"] == 4
        assert (await client.head("/")).status_code == 429
        assert (await client.get("/health")).status_code == 200
        with pytest.raises(websockets.InvalidStatus) as caught:
            await websockets.connect(f"ws://{host}/echo")
        assert caught.value.response.status_code == 429
        assert caught.value.response.headers["retry-after"] == "60"
    assert limiter.statistics().in_flight == 0
