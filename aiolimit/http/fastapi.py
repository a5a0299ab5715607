"""Limits for FastAPI, route by route: a dependency object for each.

```python
from fastapi import Depends, FastAPI

app = FastAPI()
limiter = Limiter("10/min", name="search")


@app.get("/search", dependencies=[Depends(RateLimit(limiter))])
async def search(): ...
```

It sees the matched route, so it can know what the middleware (`asgi.py`), which stands before
routing, cannot. Several on one route are all-or-nothing: where a later one refuses, what the
earlier ones were charged is given back. The permits are held until the response is sent.
"""

import json
from collections.abc import Callable, Hashable
from typing import Any, Final

from fastapi import HTTPException, Request, WebSocketException
from fastapi.exception_handlers import http_exception_handler
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response

from aiolimit.errors import RateLimited
from aiolimit.http.address import ClientAddress, peer
from aiolimit.http.answers import Answers, Refusal
from aiolimit.http.asgi_types import (
    DENIAL,
    TRY_AGAIN_LATER,
    App,
    Message,
    Receive,
    Scope,
    Send,
)
from aiolimit.http.fields import NAMES, Dialect, Pairs, merged
from aiolimit.http.rule import Exempt, Limits, Rule, Told
from aiolimit.limiter import Limiter
from aiolimit.permit import Permit

__all__ = ["RateLimit", "RateLimitFields", "TooManyRequests", "by_route"]

_CALLS: Final = "aiolimit.calls"  # in the scope: what was asked for this request, by each limit
_TELLER: Final = "aiolimit.teller"  # in the scope: whether `RateLimitFields` tells of it
_STACK: Final = "fastapi_inner_astack"  # in the scope, since FastAPI 0.118

_Call = tuple[Answers, Hashable, Limits, Permit]


def by_route(request: HTTPConnection) -> Hashable:
    """A key for each address on each route, so that several routes may share one limiter."""
    return request.scope.get("root_path", "") + route_of(request), peer(request.scope)


def route_of(request: HTTPConnection) -> str:
    """The path of the matched route, with its parameters by name: `/users/{id}`.

    With the prefixes of the routers it is included by, and without that of a mounted application.
    """
    route = request.scope.get("route")
    # FastAPI that keeps routers as they are has the whole path here.
    context = (request.scope.get("fastapi") or {}).get("effective_route_context")
    return str(getattr(context, "path", None) or getattr(route, "path", ""))


class TooManyRequests(HTTPException):
    """What a refusal raises: an `HTTPException` of 429, or of 503 where this process is overloaded.

    refused: the `RateLimited` that tells all about it.

    Without a handler of the application's own, for this, for `HTTPException` or for the status,
    the response is a problem (RFC 9457) as the middleware's is. An application that has a handler
    for `RateLimited` gets that instead.
    """

    def __init__(self, refused: RateLimited, refusal: Refusal) -> None:
        headers = {
            name.decode(): value.decode()
            for name, value in refusal.headers
            if not name.startswith(b"content-")
        }
        # Not the text of `refused`, which names the key: a handler may show this to anyone.
        super().__init__(refusal.status, json.loads(refusal.body)["detail"], headers)
        self.refused = refused
        self.refusal = refusal


class RateLimit:
    """A limit for the routes that depend on it.

    limiter: what limits; routes with the same one share its quotas, unless the key tells them
        apart, as `by_route` does.
    key: a function of the request that names the caller; by default the peer's address. A
        `ClientAddress` for services behind a proxy.
    cost: what a request costs, or a function of the request that tells.
    limit: a function of the request that tells its own limit; None for the limiter's.
    exempt: paths, as they are asked for or as the whole route has them (`/users/{id}`), and
        functions of the request, or one such function.
    max_wait: seconds a request may wait for its turn; by default it is refused at once.
    headers: how responses tell what is left: "draft-11", "legacy" or None.

    The functions may be async. The dependency's value is the permit, to settle the true cost with
    `adjust`. A request that is refused raises `TooManyRequests`.

    FastAPI puts the fields on what a route returns as data. On responses that a route makes itself,
    and on errors, they are only with `RateLimitFields`. Raises `TypeError` or `ValueError` for
    options that are none of these.
    """

    def __init__(
        self,
        limiter: Limiter,
        *,
        # Functions of an HTTPConnection; most are written for its kind, a Request.
        key: Told[Any, Hashable] | ClientAddress | None = None,
        cost: float | Told[Any, float] = 1,
        limit: Told[Any, Limits] | None = None,
        exempt: Exempt[Any] = None,
        max_wait: float | None = 0,
        headers: Dialect = "draft-11",
    ) -> None:
        self._rule = Rule[HTTPConnection](
            limiter,
            key=_of_scope(peer if key is None else key),
            cost=cost,
            limit=limit,
            exempt=exempt,
            max_wait=max_wait,
            headers=headers,
            on_refuse=None,
        )

    async def __call__(self, connection: HTTPConnection, response: Response) -> Permit | None:
        """Let the request go on to its route, or refuse it; what FastAPI calls."""
        scope, rule = connection.scope, self._rule
        if rule.has_exempt:
            if await rule.is_exempt(connection, route_of(connection), scope["path"]):
                return None
        call = await rule.ask(connection)
        calls: list[_Call] = scope.setdefault(_CALLS, [])
        try:
            await call.permit.__aenter__()
        except BaseException as error:
            for _, _, _, permit in calls:
                permit.cancel()
            if not isinstance(error, RateLimited):
                raise
            calls.append((rule.answers, call.key, call.limit, call.permit))
            raise _error(error, rule.answers.refusal(error), connection) from error
        # A dependency that yields would take ten times as long; this is where FastAPI keeps those
        # until the response is sent. Not awaited: nothing can stop it.
        scope[_STACK].callback(call.permit.__aexit__, None, None, None)
        calls.append((rule.answers, call.key, call.limit, call.permit))
        if _TELLER not in scope:
            raw = response.headers.raw
            raw[:] = [pair for pair in raw if pair[0] not in NAMES] + _fields(calls)
        return call.permit


class RateLimitFields:
    """ASGI middleware that puts the fields on all responses of routes which have a `RateLimit`.

    Those that a route makes itself (a `StreamingResponse`, a `FileResponse`), errors, and the
    answers to websockets' handshakes: `app.add_middleware(RateLimitFields)`.
    """

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and add to the start of its response."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        calls: list[_Call] = scope.setdefault(_CALLS, [])
        scope[_TELLER] = True

        async def tell(message: Message) -> None:
            if calls and message["type"].endswith((".start", ".accept")):
                headers = list(message.get("headers", ()))
                # A refusal has them already, as they were when it was refused.
                if not any(name in NAMES for name, _ in headers):
                    message = {**message, "headers": merged(headers, _fields(calls))}
            await send(message)

        await self.app(scope, receive, tell)


def _of_scope(key: Any) -> Any:
    """A key function of the request; those of `address.py` are of the scope."""
    if key is peer or isinstance(key, ClientAddress):
        return lambda request: key(request.scope)
    return key


def _fields(calls: list[_Call]) -> Pairs:
    """The fields of all limits that a request was under; of one limiter's those with least left."""
    if len(calls) == 1:
        answers, key, limit, _ = calls[0]
        return answers.onto([], key, limit)
    found: dict[int, tuple[float, Pairs]] = {}
    for answers, key, limit, permit in calls:
        pairs = answers.onto((), key, limit)
        left = permit.remaining
        known = found.get(id(permit._limiter))
        if known is None or left < known[0]:
            found[id(permit._limiter)] = left, pairs
    together: Pairs = []
    for _, pairs in found.values():
        together = merged(together, pairs)
    return together


def _error(refused: RateLimited, refusal: Refusal, connection: HTTPConnection) -> Exception:
    """What to raise, so that the application's own handlers come first, and then ours."""
    extensions = connection.scope.get("extensions") or {}
    if connection.scope["type"] == "websocket" and DENIAL not in extensions:
        return WebSocketException(TRY_AGAIN_LATER, "rate limit exceeded")
    # Where Starlette keeps the application's handlers for this request.
    handlers: dict[Any, Callable[..., Any]]
    handlers, by_status = connection.scope.get("starlette.exception_handlers", ({}, {}))
    if any(kind in handlers for kind in type(refused).__mro__ if issubclass(kind, RateLimited)):
        return refused
    is_default = handlers.get(StarletteHTTPException) is http_exception_handler
    if is_default and HTTPException not in handlers and refusal.status not in by_status:
        handlers.setdefault(TooManyRequests, _answer)
    return TooManyRequests(refused, refusal)


async def _answer(_request: Request, error: TooManyRequests) -> Response:
    response = Response(error.refusal.body, error.refusal.status)
    response.raw_headers = [*error.refusal.headers]
    return response
