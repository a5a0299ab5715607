"""The page of the demo: all its services at one address, and their metrics for Prometheus.

Each service has a page of its own, for its operator. This one shows them together, as their
acts follow each other, by asking each of them.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from aiolimit.cli.services import DemoFailed
from aiolimit.dashboard.app import page, policy

__all__ = ["PORT", "Service", "showing"]

#: Where the page is if nobody else is there: exporters of OpenTelemetry use it, too.
PORT = 9464
_PATIENCE = 3.0  # seconds; a service that is busy answers in a tenth of that


@dataclass(frozen=True, slots=True)
class Service:
    """A service of the demo, and the key with which it knows its operator."""

    name: str
    address: str
    key: str


class _Server(uvicorn.Server):
    """Leaves signals to the demo, whose loop it runs on."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Page:
    def __init__(self, services: Sequence[Service]) -> None:
        self.services = services
        self.client = httpx2.AsyncClient(timeout=_PATIENCE)

    async def ask(self, service: Service, path: str, query: str = "") -> httpx2.Response:
        headers = {"authorization": f"Bearer {service.key}"}
        url = f"{service.address}/-/{path}{'?' if query else ''}{query}"
        return await self.client.get(url, headers=headers)

    async def whole(self, _request: Request) -> Response:
        return Response(
            page(), headers={"content-security-policy": policy().decode()}, media_type="text/html"
        )

    async def state(self, request: Request) -> Response:
        """What all services say that answer."""
        questions = [self.ask(one, "dashboard/state", request.url.query) for one in self.services]
        answers = await asyncio.gather(*questions, return_exceptions=True)
        said = [
            json.loads(one.content)
            for one in answers
            if not isinstance(one, BaseException) and one.status_code == 200
        ]
        return JSONResponse({"processes": said}, 200 if said else 503)

    async def metrics(self, request: Request) -> Response:
        """What one of them tells Prometheus."""
        for service in self.services:
            if service.name == request.path_params["service"]:
                try:
                    answer = await self.ask(service, "metrics/")
                except httpx2.HTTPError as error:
                    return Response(f"{service.name}: {error!r}", 503)
                kind = answer.headers.get("content-type")
                return Response(answer.content, answer.status_code, media_type=kind)
        return Response("no such service", 404)


@contextlib.asynccontextmanager
async def showing(services: Sequence[Service], port: int | None) -> AsyncIterator[str]:
    """Serve the page of those services; gives its address.

    port: where; None for the usual one, or any that is free if that is taken.
    """
    listening = _bound(port)
    asked = _Page(services)
    app = Starlette(
        routes=[
            Route("/", asked.whole),
            Route("/state", asked.state),
            Route("/{service}/metrics", asked.metrics),
        ]
    )
    config = uvicorn.Config(
        app, log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=1
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve([listening]))
    try:
        # It listens already, so whoever comes before the server is ready waits a little.
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        await task
        listening.close()
        await asked.client.aclose()


def _bound(port: int | None) -> socket.socket:
    for number in (PORT, 0) if port is None else (port,):
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", number))
        except OSError as error:
            listening.close()
            if port is not None or not number:
                raise DemoFailed(f"port {number} cannot be had for the page: {error}") from error
            continue
        listening.listen()
        return listening
    raise DemoFailed("no port can be had for the page")
