"""The ASGI middleware, called directly and on a real server."""

import asyncio
import json
import logging
import random
import re
import time
from typing import Any

import anyio
import http_sf
import httpx2
import pytest
import websockets
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket

from aiolimit import UNLIMITED, Limiter, LoadController, RateLimited
from aiolimit.http import address
from aiolimit.http.asgi import PERMIT, RateLimitMiddleware, is_preflight
from aiolimit.http.fields import refusal_headers, retry_after
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
        b"content-type": b"application/problem+json",
        b"content-length": str(len(body["body"])).encode(),
        b"retry-after": b"43",
        b"ratelimit-policy": b'"default";q=2;w=60',
        b"ratelimit": b'"default";r=0;t=43',
    }
    assert json.loads(body["body"]) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": "default: no quota is left for this request; try again in 43 s",
        "violated-policies": ["default"],
        "retry-after": 43,
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
    assert "retry-after" not in json.loads(body["body"])


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
        ({"key": "user"}, "key must be a function of the request, not 'user'"),
        ({"exempt": "/health"}, "exempt must be paths or functions of the request, not '/health'"),
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
        assert refused.json()["violated-policies"] == ["default"]
        assert (await client.head("/")).status_code == 429
        assert (await client.get("/health")).status_code == 200
        with pytest.raises(websockets.InvalidStatus) as caught:
            await websockets.connect(f"ws://{host}/echo")
        assert caught.value.response.status_code == 429
        assert caught.value.response.headers["retry-after"] == "60"
    assert limiter.statistics().in_flight == 0


def fields(start: dict[str, Any], name: str) -> str:
    values = [value for other, value in start["headers"] if other == name.encode()]
    assert len(values) == 1, f"{name}: one line each"
    return str(values[0], "ascii")


async def test_what_is_left_is_told_on_every_response() -> None:
    clock = FakeClock()
    limiter = Limiter("3/min", "50/h", name="api", clock=clock)
    app = RateLimitMiddleware(works, limiter)
    told = []
    for _ in range(4):
        start = (await call(app))[0]
        told.append((fields(start, "ratelimit"), start["status"]))
        clock.jump(10)
        assert fields(start, "ratelimit-policy") == '"api-min";q=3;w=60, "api-h";q=50;w=3600'
    assert told == [
        ('"api-min";r=2;t=60, "api-h";r=49;t=3600', 204),
        ('"api-min";r=1;t=50, "api-h";r=48;t=3600', 204),
        ('"api-min";r=0;t=40, "api-h";r=47;t=3600', 204),
        # Nothing ends after the Retry-After: what is left holds for any shorter time, too.
        ('"api-min";r=0;t=30, "api-h";r=47;t=30', 429),
    ]


@pytest.mark.parametrize("seed", range(5))
async def test_the_quick_ways_say_what_the_long_ones_say(seed: int) -> None:
    """Two equal limiters, one asked as usual and one with options that come to the same."""
    chance = random.Random(seed)
    limit = chance.choice(["3/s", "40/s", "100/min", "2/250ms"])
    rates = [limit, "70/h"] if chance.random() < 0.3 else [limit]
    clock = FakeClock()
    quick, long = (Limiter(*rates, name='a"b\\c', clock=clock) for _ in range(2))
    usual = RateLimitMiddleware(works, quick)
    same = RateLimitMiddleware(works, long, cost=lambda scope: 1)
    for _ in range(400):
        clock.jump(chance.choice([0, 0, 0.001, 0.0625, 0.3, 1, 7.5]))
        client = (f"10.0.0.{chance.randrange(3)}", 1)
        assert await call(usual, client=client) == await call(same, client=client)
        if chance.random() < 0.02:
            first = chance.choice(["5/s", "33/min"])
            for limiter in (quick, long):
                limiter.update(first, *rates[1:])
        if chance.random() < 0.02:
            for limiter in (quick, long):
                limiter.reset(client[0])
        if chance.random() < 0.02:
            for limiter in (quick, long):
                limiter.hold(client[0], seconds=2)
    assert quick.statistics() == long.statistics()
    assert quick.statistics().rejected["quota"] > 10


@pytest.mark.parametrize("name", ["search", 'a"b\\c', "ключ 1%", "a, b;c=1", " "])
@pytest.mark.parametrize("rates", [("5/s",), ("5/s", "9/s", "100/250ms", "7/1.5s"), ("1e18/min",)])
async def test_another_parser_reads_what_is_written(name: str, rates: tuple[str, ...]) -> None:
    limiter = Limiter(*rates, name=name)
    app = RateLimitMiddleware(works, limiter)
    for _ in range(7):
        start, body = await call(app)
        policies: Any = http_sf.parse(fields(start, "ratelimit-policy").encode(), tltype="list")
        limits: Any = http_sf.parse(fields(start, "ratelimit").encode(), tltype="list")
        names = [policy for policy, _ in policies]
        assert len(set(names)) == len(rates)
        assert names == [limit for limit, _ in limits]
        for _, parameters in policies:
            assert type(parameters["q"]) is int
            assert parameters.get("w", 1) > 0
        for _, parameters in limits:
            assert parameters["r"] >= 0
            assert parameters.get("t", 1) > 0
        if start["status"] == 429:
            assert set(json.loads(body["body"])["violated-policies"]) <= set(names)
            after = int(fields(start, "retry-after"))
            assert all(parameters.get("t", 1) <= after for _, parameters in limits)


async def test_the_limit_of_a_call_is_told_and_unlimited_tells_nothing() -> None:
    limits: dict[str, Any] = {"/": 2, "/free": UNLIMITED, "/none": None, "/denied": 0}
    limiter = Limiter("5/min", name="api")
    app = RateLimitMiddleware(works, limiter, limit=lambda scope: limits[scope["path"]])
    assert fields((await call(app))[0], "ratelimit-policy") == '"api";q=2;w=60'
    assert (await call(app, path="/free"))[0]["headers"] == []
    assert fields((await call(app, path="/none"))[0], "ratelimit") == '"api";r=3;t=60'
    start, body = await call(app, path="/denied")
    assert start["status"] == 429
    assert fields(start, "ratelimit-policy") == '"api";q=0;w=60'
    assert json.loads(body["body"])["violated-policies"] == ["api"]


async def test_legacy_headers() -> None:
    clock = FakeClock()
    app = RateLimitMiddleware(works, Limiter("2/min", "9/h", clock=clock), headers="legacy")
    begun = time.time()
    for left, status in ((1, 204), (0, 204), (0, 429)):
        start = (await call(app))[0]
        assert start["status"] == status
        assert fields(start, "x-ratelimit-limit") == "2"
        assert fields(start, "x-ratelimit-remaining") == str(left)
        reset = int(fields(start, "x-ratelimit-reset"))
        assert begun + 59 < reset <= time.time() + 61
        assert not any(name.startswith(b"ratelimit") for name, _ in start["headers"])


async def test_the_headers_of_a_refusal_of_ones_own() -> None:
    limiter = Limiter("2/min", "9/h", clock=FakeClock())
    await limiter.acquire("ada", 2)
    with pytest.raises(RateLimited) as caught:
        await limiter.acquire("ada", max_wait=0)
    usual = refusal_headers(caught.value)
    assert set(usual) == {"content-type", "retry-after", "ratelimit-policy", "ratelimit"}
    assert set(refusal_headers(caught.value, None)) == {"content-type", "retry-after"}
    legacy = refusal_headers(caught.value, "legacy", now=1_000_000.0)
    assert {name: value for name, value in legacy.items() if name.startswith("x-")} == {
        "x-ratelimit-limit": "2",
        "x-ratelimit-remaining": "0",
        "x-ratelimit-reset": "1000060",
    }
    with pytest.raises(ValueError, match="needs now, in seconds since 1970, not None"):
        refusal_headers(caught.value, "legacy")
    with pytest.raises(ValueError, match="not 'draft-8'"):
        refusal_headers(caught.value, "draft-8")  # type: ignore[arg-type]


async def test_no_headers() -> None:
    app = RateLimitMiddleware(works, Limiter("1/min"), headers=None)
    assert (await call(app))[0]["headers"] == []
    names = [name for name, _ in (await call(app))[0]["headers"]]
    assert names == [b"content-type", b"retry-after", b"content-length"]


async def test_two_middlewares_share_one_line_of_each_field() -> None:
    inner = RateLimitMiddleware(works, Limiter("9/min", name="inner"))
    outer = RateLimitMiddleware(inner, Limiter("2/min", name="outer"))
    start = (await call(outer))[0]
    assert fields(start, "ratelimit") == '"inner";r=8;t=60, "outer";r=1;t=60'
    assert fields(start, "ratelimit-policy") == '"inner";q=9;w=60, "outer";q=2;w=60'
    legacy = RateLimitMiddleware(works, Limiter("9/min"), headers="legacy")
    for limit, told in (("2/min", "2"), ("100/min", "9")):
        start = (await call(RateLimitMiddleware(legacy, Limiter(limit), headers="legacy")))[0]
        assert fields(start, "x-ratelimit-limit") == told


async def test_a_backends_own_fields_are_joined_not_doubled() -> None:
    async def proxied(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"ratelimit", b'"backend";r=3'), (b"ratelimit", b'"other";r=4'), (b"x", b"y")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    start = (await call(RateLimitMiddleware(proxied, Limiter("9/min"))))[0]
    assert fields(start, "ratelimit") == '"backend";r=3, "other";r=4, "default";r=8;t=60'
    assert fields(start, "x") == "y"


async def test_headers_may_come_as_any_iterable() -> None:
    async def lazy(scope: Any, receive: Any, send: Any) -> None:
        headers = ((name, b"1") for name in (b"x-a", b"x-b"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    start = (await call(RateLimitMiddleware(lazy, Limiter("900/min"))))[0]
    assert [name for name, _ in start["headers"]] == [
        b"x-a",
        b"x-b",
        b"ratelimit-policy",
        b"ratelimit",
    ]


async def test_a_response_that_is_sent_again_and_again_stays_as_it_is() -> None:
    message = {"type": "http.response.start", "status": 200, "headers": [(b"x", b"y")]}

    async def constant(scope: Any, receive: Any, send: Any) -> None:
        await send(message)
        await send({"type": "http.response.body", "body": b""})

    app = RateLimitMiddleware(constant, Limiter("9/min"))
    for _ in range(3):
        assert len((await call(app))[0]["headers"]) == 3
    assert message["headers"] == [(b"x", b"y")]
    refused = RateLimitMiddleware(works, Limiter("1/h"))
    await call(refused)
    for _ in range(3):
        headers = (await call(refused))[0]["headers"]
        assert len(headers) == 5
        headers.append((b"vary", b"origin"))  # as a middleware further out may


async def test_async_functions_of_the_request() -> None:
    async def key(scope: Any) -> str:
        await asyncio.sleep(0)
        return str(scope["path"])

    async def cost(scope: Any) -> float:
        return 2 if scope["method"] == "POST" else 1

    async def limit(scope: Any) -> float:
        return 3

    async def internal(scope: Any) -> bool:
        return bool(scope["path"] == "/internal")

    limiter = Limiter("100/min")
    app = RateLimitMiddleware(
        works, limiter, key=key, cost=cost, limit=limit, exempt=["/health", internal]
    )
    assert await status(app, method="POST") == 204
    assert await status(app, method="POST") == 429
    assert await status(app, method="GET") == 204
    assert await status(app, method="GET", path="/other") == 204
    for path in ("/health", "/internal"):
        assert [await status(app, method="POST", path=path) for _ in range(5)] == [204] * 5
    plain = RateLimitMiddleware(works, Limiter("1/min"), key=key)
    assert [await status(plain), await status(plain)] == [204, 429]


async def test_preflights_can_be_exempt() -> None:
    app = RateLimitMiddleware(works, Limiter("1/min"), exempt=is_preflight)
    asks = [(b"origin", b"https://example.com"), (b"access-control-request-method", b"PUT")]
    assert [await status(app, method="OPTIONS", headers=asks) for _ in range(3)] == [204] * 3
    assert [await status(app, method="OPTIONS") for _ in range(2)] == [204, 429]


async def test_the_permit_is_in_the_scope_to_settle_the_true_cost() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope[PERMIT].adjust(2)
        await works(scope, receive, send)

    limiter = Limiter("10/min")
    limited = RateLimitMiddleware(app, limiter, cost=lambda scope: 8)
    start = (await call(limited))[0]
    assert fields(start, "ratelimit") == '"default";r=8;t=60', "as it is when the response begins"
    assert limiter.peek("10.0.0.1").remaining == 8


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_response_of_ones_own(is_async: bool) -> None:
    def mine(scope: Any, refused: RateLimited) -> Any:
        if scope["path"] == "/usual":
            return None
        return JSONResponse({"mine": refused.limiter}, 420, headers={"x-mine": "1"})

    async def later(scope: Any, refused: RateLimited) -> Any:
        return mine(scope, refused)

    app = RateLimitMiddleware(works, Limiter("1/min"), on_refuse=later if is_async else mine)
    assert await status(app) == 204
    start, body = await call(app)
    assert start["status"] == 420
    assert json.loads(body["body"]) == {"mine": "default"}
    assert fields(start, "content-type") == "application/json"
    assert fields(start, "retry-after") == "60"
    assert fields(start, "ratelimit") == '"default";r=0;t=60'
    assert fields(start, "x-mine") == "1"
    assert await status(app, path="/usual") == 429
    socket = {"type": "websocket", "extensions": {"websocket.http.response": {}}}
    assert (await call(app, **socket))[0]["status"] == 420
    assert (await call(app, type="websocket"))[0] == {
        "type": "websocket.close",
        "code": 1013,
        "reason": "",
    }


async def test_bad_answers_of_the_functions_are_errors_that_name_the_value() -> None:
    for options, says in (
        ({"cost": lambda scope: -1}, "cost must be a finite number from 0 up, not -1"),
        ({"cost": lambda scope: "1"}, "cost must be a number, not '1'"),
        ({"limit": lambda scope: float("nan")}, "limit must be a finite number"),
    ):
        limiter = Limiter("5/min")
        with pytest.raises((ValueError, TypeError), match=re.escape(says)):
            await call(RateLimitMiddleware(works, limiter, **options))
        assert limiter.statistics().admitted == 0


async def test_a_cost_that_can_never_pass() -> None:
    app = RateLimitMiddleware(works, Limiter("5/min", "90/h"), cost=lambda scope: 8)
    start, body = await call(app)
    assert start["status"] == 429
    assert b"retry-after" not in dict(start["headers"])
    assert json.loads(body["body"])["violated-policies"] == ["default-min"]
    assert fields(start, "ratelimit") == '"default-min";r=5, "default-h";r=90'


async def test_cancelled_in_an_anyio_scope_nothing_is_lost() -> None:
    """Such a scope cancels again at every await, also on the way out."""
    limiter = Limiter("3/min", load=(controller := LoadController()))

    async def hangs(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            await anyio.sleep_forever()
        finally:
            await anyio.sleep(0)

    waits = RateLimitMiddleware(hangs, limiter, max_wait=None)
    async with controller:
        for _ in range(3):
            with anyio.move_on_after(0.01):
                await call(waits)
        assert limiter.statistics().in_flight == 0
        assert controller.gate.in_flight == 0
        for _ in range(5):  # these wait for their turn when they are cancelled
            with anyio.move_on_after(0.01):
                await call(waits)
        assert limiter.statistics().waiting == 0
        assert limiter.statistics().admitted == 3


async def test_pipelined_requests_over_one_connection() -> None:
    limiter = Limiter("3/min")
    async with serving(RateLimitMiddleware(Starlette(routes=ROUTES), limiter=limiter)) as host:
        name, _, port = host.rpartition(":")
        reader, writer = await asyncio.open_connection(name, int(port))
        one = f"GET / HTTP/1.1\r\nhost: {host}\r\n\r\n".encode()
        last = f"GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode()
        writer.write(one * 5 + last)
        said = (await asyncio.wait_for(reader.read(), 10)).decode()
        writer.close()
        await writer.wait_closed()
    assert re.findall(r"HTTP/1.1 (\d+)", said) == ["200"] * 3 + ["429"] * 3
    assert re.findall(r"ratelimit: .*;r=(\d)", said) == ["2", "1", "0", "0", "0", "0"]
    assert len(re.findall(r"ratelimit-policy:", said)) == 6


async def test_a_stream_that_its_reader_leaves_is_in_flight_until_it_ends() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
                begun.set()
                message = await receive()
                if message["type"] == "http.disconnect":
                    return
        finally:
            ended.set()

    limiter = Limiter("5/min")
    async with (
        serving(RateLimitMiddleware(stream, limiter), lifespan="off") as host,
        httpx2.AsyncClient() as client,
        client.stream("GET", f"http://{host}/") as answer,
    ):
        assert answer.headers["ratelimit"].startswith('"default";r=4')
        await begun.wait()
        assert limiter.statistics().in_flight == 1
        await answer.aclose()
        await asyncio.wait_for(ended.wait(), 10)
        await asyncio.sleep(0)
        assert limiter.statistics().in_flight == 0


# Found by looking for trouble ---------------------------------------------------------------------


async def test_what_was_given_back_leaves_no_trace_in_the_quick_way() -> None:
    clock = FakeClock()
    limiter = Limiter("10/min", clock=clock)
    held: list[Any] = []

    async def gives_back(scope: Any, receive: Any, send: Any) -> None:
        for permit in held:
            permit.cancel()
        await works(scope, receive, send)

    app = RateLimitMiddleware(gives_back, limiter)
    await call(app)
    clock.jump(30)
    held.append(await limiter.acquire("10.0.0.1"))
    clock.jump(10)
    held.append(await limiter.acquire("10.0.0.1"))
    clock.jump(21)
    assert fields((await call(app))[0], "ratelimit") == '"default";r=9;t=60'

    async def all_of_it(scope: Any, receive: Any, send: Any) -> None:
        scope[PERMIT].cancel()
        await works(scope, receive, send)

    start = (await call(RateLimitMiddleware(all_of_it, Limiter("100/min"))))[0]
    assert fields(start, "ratelimit") == '"default";r=100'


@pytest.mark.parametrize("rates", [("0/s",), ("10/s", "0/min")])
async def test_a_limit_that_is_lowered_to_nothing_while_it_is_in_use(
    rates: tuple[str, ...],
) -> None:
    limiter = Limiter(*(["10/s"] * len(rates)))
    app = RateLimitMiddleware(works, limiter)
    assert await status(app) == 204
    limiter.update(*rates)
    start, _ = await call(app)
    assert start["status"] == 429
    assert b"retry-after" not in dict(start["headers"])
    assert limiter.statistics().rejected["cost_too_high"] == 1


async def test_the_number_of_rates_changes_while_a_request_with_its_own_limit_is_served() -> None:
    limiter = Limiter("5/s")

    async def updates(scope: Any, receive: Any, send: Any) -> None:
        limiter.update("5/s", "50/min")
        await works(scope, receive, send)

    start = (await call(RateLimitMiddleware(updates, limiter, limit=lambda scope: 3)))[0]
    assert fields(start, "ratelimit-policy") == '"default-s";q=5;w=1, "default-min";q=50;w=60'


async def test_no_window_ends_after_somebody_elses_retry_after() -> None:
    async def busy(scope: Any, receive: Any, send: Any) -> None:
        await send(
            {"type": "http.response.start", "status": 503, "headers": [(b"retry-after", b"5")]}
        )
        await send({"type": "http.response.body", "body": b""})

    start = (await call(RateLimitMiddleware(busy, Limiter("100/min"))))[0]
    assert fields(start, "ratelimit") == '"default";r=99;t=5'


async def test_refused_behind_others_it_says_by_what() -> None:
    clock = FakeClock()
    limiter = Limiter("10/min", clock=clock)
    await limiter.acquire("10.0.0.1", cost=7)
    first = asyncio.create_task(limiter.acquire("10.0.0.1", cost=5).__aenter__())
    await clock.settle()
    start, body = await call(RateLimitMiddleware(works, limiter))
    assert fields(start, "ratelimit").startswith('"default";r=3')
    assert json.loads(body["body"])["violated-policies"] == ["default"]
    first.cancel()


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        # A proxied answer of another draft is no list: it gives way.
        ([(b"ratelimit", b"limit=100, remaining=50, reset=5")], '"api";r=8;t=60'),
        ([(b"RateLimit", b'"backend";r=3')], '"backend";r=3, "api";r=8;t=60'),
        ([(b"ratelimit", b'"api";r=2;t=9')], '"api";r=2;t=9'),
        ([(b"ratelimit", b'"a, b";r=2;t=9')], '"a, b";r=2;t=9, "api";r=8;t=60'),
    ],
)
async def test_fields_that_are_there_already(theirs: list[tuple[bytes, bytes]], told: str) -> None:
    async def proxied(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": theirs})
        await send({"type": "http.response.body", "body": b""})

    start = (await call(RateLimitMiddleware(proxied, Limiter("9/min", name="api"))))[0]
    assert fields(start, "ratelimit") == told


async def test_one_limiter_twice_is_told_once() -> None:
    limiter = Limiter("9/min", name="api")
    app = RateLimitMiddleware(RateLimitMiddleware(works, limiter), limiter)
    start = (await call(app))[0]
    assert fields(start, "ratelimit") == '"api";r=7;t=60'
    assert fields(start, "ratelimit-policy") == '"api";q=9;w=60'


async def test_a_limit_below_one_is_a_quota_of_nothing() -> None:
    app = RateLimitMiddleware(works, Limiter("3/s"), limit=lambda scope: 0.5)
    assert fields((await call(app))[0], "ratelimit-policy") == '"default";q=0;w=1'


async def test_odd_names_and_scopes() -> None:
    app = RateLimitMiddleware(works, Limiter("1/min", name="\x00 \u2028"))
    assert (await call(app))[0]["status"] == 204
    assert (await call(app, type="websocket", extensions=None))[0]["code"] == 1013


async def test_a_response_of_ones_own_may_have_lazy_headers() -> None:
    def mine(scope: Any, refused: RateLimited) -> Any:
        async def response(scope: Any, receive: Any, send: Any) -> None:
            headers = iter([(b"x-mine", b"1")])
            await send({"type": "http.response.start", "status": 420, "headers": headers})
            await send({"type": "http.response.body", "body": b""})

        return response

    start = (await call(RateLimitMiddleware(works, Limiter("0/s"), on_refuse=mine)))[0]
    assert fields(start, "x-mine") == "1"


@pytest.mark.parametrize("path", ["health", "/schema*", "/*/schema", "schema/*"])
def test_a_path_that_could_never_match(path: str) -> None:
    with pytest.raises(ValueError, match="exempt takes whole paths"):
        RateLimitMiddleware(works, Limiter("1/s"), exempt=[path])


async def test_all_below_a_path_may_be_exempt() -> None:
    app = RateLimitMiddleware(works, Limiter("0/s"), exempt=["/metrics/*", "/health"])
    for path in ("/metrics", "/metrics/", "/metrics/a/b", "/health"):
        assert (await call(app, path=path))[0]["status"] == 204, path
    others = ("/metrics/../search", "/metrics/a/..", "/metrics/./search", "/metrics/a/../../b")
    for path in ("/metricsx", "/health/", "/x/metrics/", "/", "/metric", *others):
        assert (await call(app, path=path))[0]["status"] == 429, path
