"""A service for several workers, as `uvicorn tests.workers_app:app --workers 2` runs it."""

import os

from prometheus_client import CollectorRegistry, make_asgi_app
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from aiolimit import Limiter, LoadController, metrics
from aiolimit.http.asgi import RateLimitMiddleware

limiter = Limiter("10/min", "1000/h", name="workers", load=LoadController())
metrics.register(limiter)


def everybody() -> CollectorRegistry:
    """What all workers have counted."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return registry


async def answer(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(os.getpid()))


inner = Starlette(
    routes=[
        Mount("/metrics", make_asgi_app(everybody())),
        Route("/{path:path}", answer),
    ]
)
app = RateLimitMiddleware(
    inner,
    limiter=limiter,
    key=lambda scope: scope["query_string"],
    exempt=lambda scope: scope["path"].startswith(("/metrics", "/pid")),
)
