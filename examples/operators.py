"""What an operator of these services gets: the live page and the metrics, and nobody else does.

/-/dashboard/?operator=<key>    in a browser
/-/metrics                      for Prometheus, with the key as its bearer token
"""

import secrets
from urllib.parse import parse_qs

from prometheus_client import make_asgi_app
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from aiolimit import Limiter, metrics
from aiolimit.dashboard import Dashboard


def is_operator(scope: Scope, operator_key: str | None) -> bool:
    """Whether a request brings the key, as a bearer token or, from a browser, in its address."""
    if not operator_key:
        return False
    given = dict(scope["headers"]).get(b"authorization", b"")
    if not given:
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("operator", [""])
        given = b"Bearer " + asked[-1].encode()
    return secrets.compare_digest(given, b"Bearer " + operator_key.encode())


class OperatorsOnly:
    """Lets nobody else through to an application."""

    def __init__(self, app: ASGIApp, operator_key: str | None) -> None:
        self.app, self.operator_key = app, operator_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if not is_operator(scope, self.operator_key):
            app = JSONResponse({"error": "for the operator only"}, 403)
        await app(scope, receive, send)


def routes(title: str, limiters: list[Limiter], operator_key: str | None) -> list[BaseRoute]:
    """The page and the metrics of those limiters."""
    metrics.register(*limiters)
    page = Dashboard(*limiters, title=title, show_keys=True)
    exposed = OperatorsOnly(make_asgi_app(), operator_key)
    return [
        # Also without the slash at the end: the services have a route for everything else.
        Route("/-/dashboard", OperatorsOnly(_with_slash, operator_key)),
        Mount("/-/dashboard", OperatorsOnly(page, operator_key)),
        Route("/-/metrics", exposed),
        Mount("/-/metrics", exposed),
    ]


async def _with_slash(scope: Scope, receive: Receive, send: Send) -> None:
    query = scope["query_string"].decode("latin-1")
    await RedirectResponse(f"dashboard/?{query}")(scope, receive, send)
