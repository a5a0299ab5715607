"""aiohttp's server with limits, asked by real clients over sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import anyio
import pytest
from aiohttp import web
from yarl import URL

from aiolimit import UNLIMITED, Limiter, LoadController, RateLimited
from aiolimit.http.address import ClientAddress
from aiolimit.http.aiohttp_server import PERMIT, is_preflight, route_of, setup
from tests.test_load import force


async def hello(request: web.Request) -> web.Response:
    return web.Response(text="hello", headers={"x-own": "1"})


async def item(request: web.Request) -> web.Response:
    return web.json_response(request.match_info["item"])


async def fails(request: web.Request) -> web.Response:
    raise web.HTTPNotFound(text="no such thing")


async def breaks(request: web.Request) -> web.Response:
    raise RuntimeError("broken")


async def stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"a")
    await response.write_eof(b"b")
    return response


async def echo(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    await socket.send_str(await socket.receive_str())
    await socket.close()
    return socket


async def settle(request: web.Request) -> web.Response:
    request[PERMIT].adjust(2)
    return web.Response(text="settled")


ROUTES = [
    web.get("/", hello),
    web.get("/items/{item}", item),
    web.get("/fails", fails),
    web.get("/breaks", breaks),
    web.get("/stream", stream),
    web.get("/echo", echo),
    web.get("/settle", settle),
    web.get("/health", hello),
    web.route("OPTIONS", "/", hello),
]


@contextlib.asynccontextmanager
async def served(limiter: Limiter, **options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    app = web.Application()
    app.add_routes(ROUTES)
    below = web.Application()
    below.add_routes([web.get("/deep", hello)])
    app.add_subapp("/mounted", below)
    setup(app, limiter, **options)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    try:
        async with aiohttp.ClientSession(f"http://{host}:{port}") as client:
            yield client
    finally:
        await runner.cleanup()


async def status(client: aiohttp.ClientSession, path: str = "/", **options: Any) -> int:
    async with client.get(path, **options) as answer:
        return answer.status


async def test_all_below_a_path_may_be_exempt_and_only_what_aiohttp_finds_there() -> None:
    async with served(Limiter("0/s"), exempt=["/items/*"]) as client:
        for path, status in (
            ("/items/1", 200),
            ("/items/%C3%A4", 200),
            ("/items", 404),
            ("/items%2F1", 429),
            ("/items%2f1", 429),
            ("/itemsx", 429),
            ("/", 429),
        ):
            async with client.get(URL(path, encoded=True)) as answer:
                assert answer.status == status, path


async def test_a_service_and_its_refusals() -> None:
    limiter = Limiter("4/min", name="api")
    async with served(limiter, exempt=["/health"]) as client:
        for left, path in ((3, "/"), (2, "/items/1"), (1, "/mounted/deep"), (0, "/nowhere")):
            async with client.get(path) as answer:
                assert answer.status == (404 if path == "/nowhere" else 200)
                assert answer.headers.getall("ratelimit") == [f'"api";r={left};t=60']
                assert answer.headers.getall("ratelimit-policy") == ['"api";q=4;w=60']
        for method in ("GET", "POST", "HEAD"):
            async with client.request(
                method, "/", headers={"x-forwarded-for": "1.2.3.4"}
            ) as answer:
                assert answer.status == 429
                assert answer.headers["retry-after"] == "60"
                assert answer.headers["content-type"] == "application/problem+json"
                assert answer.headers.getall("ratelimit") == ['"api";r=0;t=60']
                if method != "HEAD":
                    problem = await answer.json(content_type="application/problem+json")
                    assert problem["violated-policies"] == ["api"]
        assert await status(client, "/health") == 200
    assert limiter.statistics().in_flight == 0


@pytest.mark.parametrize("path", ["/", "/stream", "/fails", "/breaks", "/nowhere"])
async def test_fields_on_all_responses(path: str) -> None:
    async with served(Limiter("1/min")) as client, client.get(path) as answer:
        assert answer.headers.getall("ratelimit") == ['"default";r=0;t=60']


async def test_websockets() -> None:
    async with served(Limiter("1/min")) as client:
        async with client.ws_connect("/echo") as socket:
            await socket.send_str("over the wire")
            assert await socket.receive_str() == "over the wire"
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await client.ws_connect("/echo")
        assert caught.value.status == 429
        assert caught.value.headers is not None
        assert caught.value.headers["retry-after"] == "60"


async def test_options_as_functions() -> None:
    async def key(request: web.Request) -> str:
        return f"{request.headers.get('user')} {route_of(request)}"

    async def cost(request: web.Request) -> float:
        return float(request.headers.get("cost", 1))

    def limit(request: web.Request) -> Any:
        return UNLIMITED if request.headers.get("user") == "vip" else None

    limiter = Limiter("3/min")
    async with served(
        limiter, key=key, cost=cost, limit=limit, exempt=[is_preflight, "/health"]
    ) as client:
        assert await status(client, "/items/1", headers={"cost": "3"}) == 200
        assert await status(client, "/items/2") == 429
        assert await status(client) == 200
        assert await status(client, headers={"user": "vip", "cost": "99"}) == 200
        preflight = {"origin": "http://a", "access-control-request-method": "PUT", "cost": "3"}
        for _ in range(3):
            async with client.options("/", headers=preflight) as answer:
                assert answer.status == 200


async def test_a_permit_is_settled() -> None:
    limiter = Limiter("10/min")
    async with (
        served(limiter, cost=lambda request: 9) as client,
        client.get("/settle") as answer,
    ):
        assert answer.headers["ratelimit"] == '"default";r=8;t=60'


async def test_behind_a_proxy() -> None:
    behind = ClientAddress(trusted_proxies=["127.0.0.0/8"])
    async with served(Limiter("1/min"), key=behind) as client:
        for address, code in (("203.0.113.7", 200), ("203.0.113.8", 200), ("203.0.113.7", 429)):
            headers = {"X-Forwarded-For": f"198.51.100.1, {address}:4711"}
            assert await status(client, headers=headers) == code


async def test_a_response_of_ones_own() -> None:
    async def own(request: web.Request, refused: RateLimited) -> web.Response | None:
        if request.path != "/":
            return None
        return web.json_response({"own": refused.limiter}, status=420)

    async with served(Limiter("0/min"), on_refuse=own) as client:
        async with client.get("/") as answer:
            assert answer.status == 420
            assert await answer.json() == {"own": "default"}
            assert answer.headers["ratelimit-policy"] == '"default";q=0;w=60'
        assert await status(client, "/items/1") == 429


@pytest.mark.parametrize(("headers", "name"), [("legacy", "x-ratelimit-remaining"), (None, None)])
async def test_other_dialects(headers: Any, name: str | None) -> None:
    async with served(Limiter("2/min"), headers=headers) as client, client.get("/") as answer:
        assert "ratelimit" not in answer.headers
        assert name is None or answer.headers[name] == "1"


async def test_a_handlers_own_error_leaves_unchanged_and_it_runs_once() -> None:
    calls = 0

    async def limited(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        await Limiter("0/s", name="inner").acquire("x")
        return web.Response()

    limiter = Limiter("9/min")
    app = web.Application()
    app.add_routes([web.get("/", limited)])
    setup(app, limiter)
    caught: list[BaseException] = []

    @web.middleware
    async def outer(request: web.Request, handler: Any) -> Any:
        try:
            return await handler(request)
        except RateLimited as error:
            caught.append(error)
            return web.Response(status=418)

    app.middlewares.insert(0, outer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    async with aiohttp.ClientSession() as client:
        assert await status(client, f"http://{host}:{port}/") == 418
    await runner.cleanup()
    assert calls == 1
    assert [error.limiter for error in caught if isinstance(error, RateLimited)] == ["inner"]
    assert limiter.statistics().in_flight == 0
    assert limiter.statistics().completed == 1


async def test_the_load_controller_runs_with_the_application() -> None:
    controller = LoadController()
    async with served(Limiter("100/s", load=controller)) as client:
        assert controller.is_running
        assert await status(client) == 200
        force(controller, cap=0)
        async with client.get("/") as answer:
            assert answer.status == 503
            problem = await answer.json(content_type="application/problem+json")
            assert problem["type"].endswith("#temporary-reduced-capacity")
    assert not controller.is_running


async def test_a_bounded_wait_and_a_client_that_leaves_while_it_waits() -> None:
    limiter = Limiter("1/200ms")
    async with served(limiter, max_wait=5) as client:
        assert await status(client) == 200
        with anyio.move_on_after(0.05):
            await status(client)
        codes = await asyncio.gather(*(status(client) for _ in range(2)))
        assert codes == [200, 200]
    assert limiter.statistics().waiting == 0
    assert limiter.statistics().in_flight == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [({"key": "user"}, "key"), ({"headers": "new"}, "new"), ({"exempt": "/health"}, "exempt")],
)
def test_bad_options(options: dict[str, Any], says: str) -> None:
    app = web.Application()
    with pytest.raises((TypeError, ValueError), match=says):
        setup(app, Limiter("1/s"), **options)
    assert len(app.middlewares) == 0


async def test_two_limits_on_one_application_tell_each_their_own() -> None:
    app, below = web.Application(), web.Application()
    below.add_routes([web.get("/deep", hello)])
    by_address = Limiter("100/min", name="ip")
    by_user = Limiter("3/min", "90/h", name="user")
    setup(app, by_address, exempt=["/below/deep"])
    setup(below, by_user, key=lambda request: "user:1", limit=lambda request: (2, 50))
    app.add_subapp("/below", below)
    app.add_routes([web.get("/", hello)])
    setup(app, Limiter("50/min", name="third"), limit=lambda request: 7)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    async with aiohttp.ClientSession(f"http://{host}:{port}") as client:
        async with client.get("/") as answer:
            assert answer.headers["ratelimit"] == '"ip";r=99;t=60, "third";r=6;t=60'
        async with client.get("/below/deep") as answer:
            assert answer.headers["ratelimit"] == (
                '"third";r=5;t=60, "user-min";r=1;t=60, "user-h";r=49;t=3600'
            )
    await runner.cleanup()


def test_one_limiter_is_set_up_once() -> None:
    app, limiter = web.Application(), Limiter("1/s")
    setup(app, limiter)
    with pytest.raises(ValueError, match="set up on this application already"):
        setup(app, limiter)
