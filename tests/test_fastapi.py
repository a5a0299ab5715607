"""A dependency for each route of a FastAPI service, on a real server and with its test client."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import anyio
import httpx2
import pytest
import websockets
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, WebSocket
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from fastapi.testclient import TestClient
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection

from aiolimit import UNLIMITED, Limiter, LoadController, Permit, RateLimited
from aiolimit.http.address import ClientAddress
from aiolimit.http.fastapi import RateLimit, RateLimitFields, TooManyRequests, by_route
from tests.serving import serving
from tests.test_load import force


def service(*limits: RateLimit, **options: Any) -> FastAPI:
    app = FastAPI(**options)
    depends = [Depends(limit) for limit in limits]

    @app.get("/data", dependencies=depends)
    async def data() -> dict[str, str]:
        return {"some": "data"}

    @app.get("/items/{item}", dependencies=depends)
    async def item(item: int) -> int:
        return item

    @app.get("/plain", dependencies=depends)
    async def plain() -> PlainTextResponse:
        return PlainTextResponse("plain", headers={"x-own": "1"})

    @app.get("/thread", dependencies=depends)
    def thread() -> str:
        return "from a thread"

    @app.get("/stream", dependencies=depends)
    async def stream() -> StreamingResponse:
        return StreamingResponse(iter(["a", "b"]))

    @app.get("/fails", dependencies=depends)
    async def fails() -> None:
        raise HTTPException(404, "no such thing")

    @app.get("/free")
    async def free() -> str:
        return "free"

    return app


def test_a_route_and_its_refusal() -> None:
    limiter = Limiter("2/min", name="search")
    client = TestClient(service(RateLimit(limiter)))
    for left in (1, 0):
        answer = client.get("/data")
        assert answer.status_code == 200
        assert answer.headers["ratelimit"] == f'"search";r={left};t=60'
        assert answer.headers["ratelimit-policy"] == '"search";q=2;w=60'
    answer = client.get("/items/3")
    assert answer.status_code == 429, "routes with one limiter share its quota"
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["retry-after"] == "60"
    assert answer.headers["ratelimit"] == '"search";r=0;t=60'
    assert answer.json()["violated-policies"] == ["search"]
    assert answer.json()["type"].endswith("#quota-exceeded")
    for name in ("ratelimit", "ratelimit-policy", "retry-after", "content-type"):
        assert len(answer.headers.get_list(name)) == 1
    free = client.get("/free")
    assert free.status_code == 200
    assert "ratelimit" not in free.headers
    assert client.get("/nowhere").status_code == 404
    assert limiter.statistics().in_flight == 0


def test_the_matched_route_is_seen() -> None:
    seen: list[str] = []

    def key(request: HTTPConnection) -> str:
        seen.append(request.scope["route"].path)
        return str(request.path_params.get("item"))

    client = TestClient(service(RateLimit(Limiter("1/min"), key=key)))
    codes = [client.get(f"/items/{item}").status_code for item in (1, 2, 1)]
    assert codes == [200, 200, 429]
    assert seen == ["/items/{item}"] * 3


def test_by_route() -> None:
    client = TestClient(service(RateLimit(Limiter("1/min"), key=by_route)))
    paths = ("/data", "/items/1", "/items/2", "/thread", "/data")
    assert [client.get(path).status_code for path in paths] == [200, 200, 429, 200, 429]


def test_several_on_one_route_are_all_or_nothing() -> None:
    def user(request: HTTPConnection) -> str:
        return request.headers["user"]

    shared, other = Limiter("3/min", name="shared"), Limiter("9/min", name="other")
    client = TestClient(
        service(RateLimit(other), RateLimit(shared), RateLimit(shared, key=user, cost=2))
    )
    answer = client.get("/data", headers={"user": "ann"})
    assert answer.status_code == 200
    # Of the two under one limiter, what is told is the one with less left.
    assert answer.headers["ratelimit"] == '"other";r=8;t=60, "shared";r=1;t=60'
    assert client.get("/data", headers={"user": "ann"}).status_code == 429
    assert (shared.peek("testclient").remaining, shared.peek("ann").remaining) == (2, 1)
    assert other.peek("testclient").remaining == 8
    assert client.get("/data", headers={"user": "bob"}).status_code == 200
    assert client.get("/data", headers={"user": "eve"}).status_code == 200
    assert client.get("/data", headers={"user": "jim"}).status_code == 429
    assert shared.peek("jim").remaining == 3
    assert shared.statistics().in_flight == other.statistics().in_flight == 0


def test_options_as_functions() -> None:
    async def cost(request: HTTPConnection) -> float:
        return float(request.headers.get("cost", 1))

    def limit(request: HTTPConnection) -> Any:
        return {"vip": UNLIMITED, "low": 1}.get(request.headers.get("user", ""))

    limiter = Limiter("5/min")
    rule = RateLimit(limiter, cost=cost, limit=limit, exempt=["/items/{item}"])
    client = TestClient(service(rule))
    assert (
        client.get("/data", headers={"cost": "4"}).headers["ratelimit"].startswith('"default";r=1')
    )
    assert client.get("/data", headers={"cost": "2"}).status_code == 429
    vip = client.get("/data", headers={"user": "vip", "cost": "99"})
    assert vip.status_code == 200
    assert "ratelimit" not in vip.headers
    assert client.get("/data", headers={"user": "low"}).status_code == 429
    assert [client.get("/items/1").status_code for _ in range(9)] == [200] * 9
    plain = TestClient(service(RateLimit(Limiter("1/min"), headers="legacy")))
    assert plain.get("/data").headers["x-ratelimit-remaining"] == "0"
    silent = TestClient(service(RateLimit(Limiter("1/min"), headers=None)))
    assert "ratelimit" not in silent.get("/data").headers
    assert "ratelimit" not in silent.get("/data").headers


def test_the_permit_is_the_value_of_the_dependency() -> None:
    limiter = Limiter("10/min")
    app = FastAPI()

    @app.get("/")
    async def settle(permit: Annotated[Permit, Depends(RateLimit(limiter, cost=8))]) -> float:
        permit.adjust(3)
        return permit.remaining

    assert TestClient(app).get("/").json() == 7


@pytest.mark.parametrize("path", ["/data", "/plain", "/stream", "/fails", "/thread", "/items/x"])
def test_fields_on_all_responses(path: str) -> None:
    app = service(RateLimit(Limiter("1/min")))
    app.add_middleware(RateLimitFields)
    client = TestClient(app)
    answer = client.get(path)
    assert answer.status_code == {"/fails": 404, "/items/x": 422}.get(path, 200)
    assert answer.headers.get_list("ratelimit") == ['"default";r=0;t=60']
    refused = client.get(path)
    assert refused.status_code == 429
    assert refused.headers.get_list("ratelimit") == ['"default";r=0;t=60']
    assert refused.headers.get_list("ratelimit-policy") == ['"default";q=1;w=60']
    assert "ratelimit" not in client.get("/free").headers


def test_handlers_of_the_applications_own_come_first() -> None:
    app = service(RateLimit(Limiter("0/min")))

    @app.exception_handler(RateLimited)
    async def own(request: Request, refused: RateLimited) -> JSONResponse:
        return JSONResponse({"own": refused.limiter}, 420)

    assert TestClient(app).get("/data").json() == {"own": "default"}

    app = service(RateLimit(Limiter("0/min")))

    @app.exception_handler(429)
    async def by_status(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"own": 429}, 429, error.headers)

    answer = TestClient(app).get("/data")
    assert answer.json() == {"own": 429}
    assert answer.headers["ratelimit-policy"] == '"default";q=0;w=60'

    app = service(RateLimit(Limiter("0/min")))

    @app.exception_handler(HTTPException)
    async def of_all(request: Request, error: HTTPException) -> JSONResponse:
        assert isinstance(error, TooManyRequests)
        assert error.refused.reason == "cost_too_high"
        return JSONResponse({"own": error.detail}, error.status_code)

    assert "can never pass" in TestClient(app).get("/data").json()["own"]


def test_mounted_and_nested() -> None:
    limiter = Limiter("2/min")
    inner = service(RateLimit(limiter))
    router = APIRouter(prefix="/api", dependencies=[Depends(RateLimit(limiter))])

    @router.get("/here")
    async def here() -> str:
        return "here"

    app = FastAPI()
    app.include_router(router)
    app.mount("/mounted", inner)
    app.add_middleware(RateLimitFields)
    client = TestClient(app)
    assert client.get("/mounted/data").headers.get_list("ratelimit") == ['"default";r=1;t=60']
    assert client.get("/api/here").status_code == 200
    assert client.get("/mounted/data").status_code == client.get("/api/here").status_code == 429


def test_a_refusal_passes_an_outer_cors_middleware() -> None:
    app = service(RateLimit(Limiter("0/min")))
    app.add_middleware(CORSMiddleware, allow_origins=["https://example.com"])
    answer = TestClient(app).get("/data", headers={"origin": "https://example.com"})
    assert answer.status_code == 429
    assert answer.headers["access-control-allow-origin"] == "https://example.com"


def test_two_clients_on_one_app() -> None:
    app = service(RateLimit(Limiter("3/min")))
    for codes in ([200, 200], [200, 429]):
        with TestClient(app) as client:
            assert [client.get("/data").status_code for _ in range(2)] == codes
    assert TestClient(app).get("/data").status_code == 429


async def test_on_a_server_behind_a_proxy() -> None:
    behind = ClientAddress(trusted_proxies=["127.0.0.0/8"])
    app = service(RateLimit(Limiter("1/min"), key=behind))
    async with (
        serving(app, proxy_headers=False) as host,
        httpx2.AsyncClient(base_url=f"http://{host}") as client,
    ):
        for address, code in (("203.0.113.7", 200), ("203.0.113.8", 200), ("203.0.113.7", 429)):
            headers = {"x-forwarded-for": f"198.51.100.1, {address}:4711"}
            assert (await client.get("/data", headers=headers)).status_code == code


async def test_websockets() -> None:
    app = FastAPI()
    limiter = Limiter("1/min")

    @app.websocket("/echo", dependencies=[Depends(RateLimit(limiter))])
    async def echo(socket: WebSocket) -> None:
        await socket.accept()
        assert limiter.statistics().in_flight == 1
        await socket.send_text(await socket.receive_text())
        await socket.close()

    app.add_middleware(RateLimitFields)
    async with serving(app) as host:
        async with websockets.connect(f"ws://{host}/echo") as socket:
            assert socket.response is not None
            assert socket.response.headers["ratelimit"] == '"default";r=0;t=60'
            await socket.send("over the wire")
            assert await socket.recv() == "over the wire"
        with pytest.raises(websockets.InvalidStatus) as caught:
            await websockets.connect(f"ws://{host}/echo")
        assert caught.value.response.status_code == 429
        assert caught.value.response.headers["retry-after"] == "60"
        assert b"quota-exceeded" in (caught.value.response.body or b"")
    assert limiter.statistics().in_flight == 0


async def test_held_until_the_response_is_sent_whatever_ends_it() -> None:
    begun = asyncio.Event()
    limiter = Limiter("9/min")
    app = FastAPI()

    async def drip() -> AsyncIterator[bytes]:
        while True:
            yield b"x"
            begun.set()
            await anyio.sleep(0.01)

    @app.get("/", dependencies=[Depends(RateLimit(limiter))])
    async def stream() -> StreamingResponse:
        return StreamingResponse(drip())

    async with (
        serving(app) as host,
        httpx2.AsyncClient() as client,
        client.stream("GET", f"http://{host}/") as answer,
    ):
        await begun.wait()
        assert limiter.statistics().in_flight == 1
        await answer.aclose()
        async with asyncio.timeout(10):
            while limiter.statistics().in_flight:
                await asyncio.sleep(0.01)


async def test_an_overloaded_process_says_503() -> None:
    controller = LoadController()
    limiter = Limiter("100/s", load=controller)
    async with controller:
        force(controller, cap=0)
        transport = httpx2.ASGITransport(service(RateLimit(limiter)))
        async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
            answer = await client.get("/data")
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["type"].endswith("#temporary-reduced-capacity")


async def test_a_bounded_wait() -> None:
    limiter = Limiter("1/100ms")
    app = service(RateLimit(limiter, max_wait=0.15))
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
        codes = await asyncio.gather(*(client.get("/data") for _ in range(4)))
    assert sorted(answer.status_code for answer in codes) == [200, 200, 429, 429]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key": "user"}, "key must be a function"),
        ({"cost": -1}, "cost"),
        ({"limit": 5}, "limit must be a function"),
        ({"exempt": "/data"}, "exempt"),
        ({"headers": "draft-7"}, "draft-7"),
        ({"max_wait": -1}, "max_wait"),
    ],
)
def test_bad_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        RateLimit(Limiter("1/s"), **options)
    with pytest.raises(TypeError, match="limiter must be a Limiter"):
        RateLimit("1/s")  # type: ignore[arg-type]


def test_a_router_with_a_prefix() -> None:
    limiter = Limiter("1/min")
    router = APIRouter()

    @router.get("/status", dependencies=[Depends(RateLimit(limiter, exempt=["/status"]))])
    async def status() -> str:
        return "here"

    other = APIRouter()

    @other.get("/{name}", dependencies=[Depends(RateLimit(limiter, key=by_route))])
    async def named(name: str) -> str:
        return name

    app = FastAPI()
    app.include_router(router, prefix="/expensive")
    app.include_router(other, prefix="/users")
    app.include_router(other, prefix="/orders")
    client = TestClient(app)
    assert [client.get("/expensive/status").status_code for _ in range(2)] == [200, 429]
    paths = ("/users/1", "/orders/1", "/users/2")
    assert [client.get(path).status_code for path in paths] == [200, 200, 429]

    exempt = FastAPI()
    health = APIRouter()

    @health.get(
        "/health/{part}",
        dependencies=[
            Depends(RateLimit(limiter, exempt=["/api/health/{part}", "/other/health/one"]))
        ],
    )
    async def check(part: str) -> str:
        return part

    exempt.include_router(health, prefix="/api")
    exempt.include_router(health, prefix="/other")
    client = TestClient(exempt)
    for path, codes in (("/api/health/a", [200, 200]), ("/other/health/one", [200, 200])):
        assert [client.get(path).status_code for _ in range(2)] == codes
    assert client.get("/other/health/two").status_code == 429


async def test_cancelled_while_a_later_limit_waits_the_earlier_is_given_back() -> None:
    first, second = Limiter("9/min"), Limiter("1/h")
    app = service(RateLimit(first), RateLimit(second, max_wait=100_000))
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
        await client.get("/data")
        left = first.peek("127.0.0.1").remaining
        with anyio.move_on_after(0.05):
            await client.get("/data")
    assert first.peek("127.0.0.1").remaining == left == 8


def test_a_handler_of_ones_own_gets_the_fields_too() -> None:
    app = service(RateLimit(Limiter("0/min")))
    app.add_middleware(RateLimitFields)

    @app.exception_handler(RateLimited)
    async def own(request: Request, refused: RateLimited) -> JSONResponse:
        return JSONResponse({}, 429)

    assert TestClient(app).get("/data").headers["ratelimit"] == '"default";r=0'


def test_a_usual_handler_shows_no_key() -> None:
    app = service(RateLimit(Limiter("0/min"), key=lambda request: "tenant-secret-42"))

    @app.exception_handler(HTTPException)
    async def usual(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"detail": error.detail}, error.status_code)

    assert "secret" not in TestClient(app).get("/data").text


def test_a_route_that_runs_in_a_thread_is_told_so() -> None:
    app = FastAPI()

    @app.get("/")
    def settle(permit: Annotated[Permit, Depends(RateLimit(Limiter("9/min")))]) -> None:
        permit.adjust(3)

    with pytest.raises(RuntimeError, match="call it from `async def`, and not from a thread"):
        TestClient(app).get("/")
