"""The load controller runs for as long as the application does, and refuses with 503."""

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import websockets
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from aiolimit import Limiter, LoadController
from aiolimit.http.asgi import RateLimitMiddleware
from tests.serving import serving
from tests.test_asgi import ROUTES
from tests.test_load import force


def protected(app: Any, controller: LoadController, rate: str = "1000/s") -> RateLimitMiddleware:
    return RateLimitMiddleware(app, Limiter(rate, load=controller))


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """An application that has never heard of lifespan."""
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def silent(scope: Any, receive: Any, send: Any) -> None:
    """One that returns instead."""
    if scope["type"] == "http":
        await bare(scope, receive, send)


async def reads_first(scope: Any, receive: Any, send: Any) -> None:
    """One that has read what it does not understand."""
    if scope["type"] == "http":
        await bare(scope, receive, send)
    else:
        await receive()
        raise NotImplementedError


async def answers_anything(scope: Any, receive: Any, send: Any) -> None:
    """One that does not look at what it is asked."""
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def leaves_early(scope: Any, receive: Any, send: Any) -> None:
    """One that takes its leave once it has started."""
    if scope["type"] == "http":
        await bare(scope, receive, send)
    else:
        await receive()
        await send({"type": "lifespan.startup.complete"})


async def breaks_later(scope: Any, receive: Any, send: Any) -> None:
    """One whose lifespan ends with an error after it has started."""
    await leaves_early(scope, receive, send)
    if scope["type"] == "lifespan":
        raise LookupError


APPS = [
    *(Starlette(routes=ROUTES), bare, silent, reads_first),
    *(answers_anything, leaves_early, breaks_later),
]


@pytest.mark.parametrize("app", APPS)
@pytest.mark.parametrize("lifespan", ["on", "auto"])
async def test_it_runs_while_the_server_does(app: Any, lifespan: str) -> None:
    controller = LoadController()
    async with serving(protected(app, controller), lifespan=lifespan) as address:
        assert controller.is_running
        async with httpx2.AsyncClient(base_url=f"http://{address}") as client:
            assert (await client.get("/")).status_code == 200
    assert not controller.is_running
    assert controller.in_flight == 0


async def test_the_lifespan_of_the_application_runs_inside() -> None:
    controller = LoadController()
    seen = []

    @asynccontextmanager
    async def lifespan(_app: Any) -> Any:
        seen.append(controller.is_running)
        yield {"shared": 42}
        seen.append(controller.is_running)

    async def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse(str(request.state.shared))

    app = Starlette(routes=[Route("/", home)], lifespan=lifespan)
    async with (
        serving(protected(app, controller), lifespan="on") as address,
        httpx2.AsyncClient(base_url=f"http://{address}") as client,
    ):
        assert (await client.get("/")).text == "42"
    assert seen == [True, True]


def test_an_application_that_cannot_start_is_heard() -> None:
    @asynccontextmanager
    async def lifespan(_app: Any) -> Any:
        raise LookupError("no database")
        yield

    controller = LoadController()
    client = TestClient(protected(Starlette(lifespan=lifespan), controller))
    with pytest.raises(LookupError, match="no database"), client:
        pass
    assert not controller.is_running


async def test_an_error_before_anything_was_said_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "aiolimit.http"):
        async with serving(protected(bare, LoadController()), lifespan="on"):
            pass
    assert "raised at ASGI lifespan" in caplog.text
    assert "AssertionError" in caplog.text


async def test_an_error_after_the_start_is_loud(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(protected(breaks_later, LoadController()), lifespan="on"):
        pass
    assert "the application's lifespan ended with an error" in caplog.text
    assert "LookupError" in caplog.text


def test_two_test_clients_in_a_row() -> None:
    controller = LoadController()
    app = protected(Starlette(routes=ROUTES), controller)
    for _ in range(2):
        with TestClient(app) as client:
            assert client.get("/").text == "hello"
    with pytest.raises(RuntimeError, match="is not running"):
        TestClient(app).get("/")  # without `with` there is no lifespan


async def test_two_middlewares_share_one_controller() -> None:
    controller = LoadController()
    app = protected(protected(Starlette(routes=ROUTES), controller), controller)
    async with serving(app, lifespan="on") as address:
        async with httpx2.AsyncClient(base_url=f"http://{address}") as client:
            assert (await client.get("/")).status_code == 200
        assert controller.in_flight == 0
    assert not controller.is_running


async def test_what_an_overloaded_server_says() -> None:
    controller = LoadController()
    async with serving(protected(Starlette(routes=ROUTES), controller), lifespan="on") as address:
        force(controller, cap=0)
        async with httpx2.AsyncClient(base_url=f"http://{address}") as client:
            answer = await client.get("/")
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json() == {
            "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "title": "Request cannot be satisfied due to temporary server capacity constraints",
            "status": 503,
            "detail": "the server has more to do than it can; "
            f"try again in {answer.headers['retry-after']} s",
            "violated-policies": [],
            "retry-after": int(answer.headers["retry-after"]),
        }
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with websockets.connect(f"ws://{address}/echo"):
                pass
        assert refused.value.response.status_code == 503
        force(controller, cap=1)
        async with websockets.connect(f"ws://{address}/echo") as socket:
            assert controller.in_flight == 1  # for as long as it is open
            await socket.send("hello")
            assert await socket.recv() == "hello"


async def test_a_client_that_goes_away_leaves_no_place_taken() -> None:
    controller = LoadController()
    entered = asyncio.Event()

    async def slow(_request: Request) -> PlainTextResponse:
        entered.set()
        await asyncio.sleep(0.05)
        return PlainTextResponse("late")

    app = Starlette(routes=[Route("/", slow)])
    async with serving(protected(app, controller), lifespan="on") as address:
        async with httpx2.AsyncClient(base_url=f"http://{address}", timeout=0.02) as client:
            with pytest.raises(httpx2.ReadTimeout):
                await client.get("/")
        await entered.wait()
        for _ in range(200):
            await asyncio.sleep(0.01)
            if not controller.in_flight:
                break
        assert controller.in_flight == 0
