"""Limits for aiohttp's server.

```python
from aiohttp import web

app = web.Application()
setup(app, Limiter("100/min"))
```

`setup` adds a middleware that decides, a signal that puts the fields on every response, whoever
prepares it, and has the limiter's load controller run as long as the application does.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from typing import Any, Final, TypeAlias

from aiohttp import hdrs, web

from aiolimit.errors import RateLimited
from aiolimit.http.address import ClientAddress, grouped, nobody
from aiolimit.http.answers import Refusal
from aiolimit.http.fields import NAMES, Dialect
from aiolimit.http.rule import Exempt, Limits, Rule, Told
from aiolimit.limiter import Limiter
from aiolimit.permit import Permit

__all__ = ["PERMIT", "is_preflight", "peer", "route_of", "setup"]


def _path(request: web.Request) -> str:
    """The path as aiohttp finds its route by: a slash that is encoded parts nothing."""
    raw = request.rel_url.raw_path
    return raw if "%2f" in raw.lower() else request.path


def _key(name: str, kind: type) -> Any:
    """A key of a request's storage; aiohttp before 3.14 takes plain text."""
    return web.RequestKey(name, kind) if hasattr(web, "RequestKey") else name


#: Where a handler finds its permit in the request, as to settle the true cost with `adjust`.
PERMIT: Final[Any] = _key("aiolimit.permit", Permit)

_Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


def peer(request: web.Request) -> str:
    """The address of the socket's other end, without its port; of IPv6 the /64."""
    return grouped(request.remote) if request.remote else nobody()


def route_of(request: web.Request) -> str:
    """The path of the matched route, with its parameters by name: `/users/{id}`."""
    resource = request.match_info.route.resource
    return request.path if resource is None else resource.canonical


def is_preflight(request: web.Request) -> bool:
    """Whether a request is a CORS preflight, which a browser sends of its own accord."""
    asks = hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
    return request.method == hdrs.METH_OPTIONS and asks


def setup(
    app: web.Application,
    limiter: Limiter,
    *,
    key: Told[web.Request, Hashable] | ClientAddress = peer,
    cost: float | Told[web.Request, float] = 1,
    limit: Told[web.Request, Limits] | None = None,
    exempt: Exempt[web.Request] = None,
    max_wait: float | None = 0,
    headers: Dialect = "draft-11",
    on_refuse: Callable[
        [web.Request, RateLimited],
        web.StreamResponse | None | Awaitable[web.StreamResponse | None],
    ]
    | None = None,
) -> None:
    """Limit all requests to an application, and to those below it.

    limiter: what limits; each key has its own quota.
    key: a function of the request that names the caller; by default the peer's address. A
        `ClientAddress` for services behind a proxy.
    cost: what a request costs, 1 by default, or a function of the request that tells.
    limit: a function of the request that tells its own limit, as `Limiter.acquire` has it; None
        for the limiter's.
    exempt: what is never limited: paths and functions of the request, such as `is_preflight`, or
        one such function.
    max_wait: seconds a request may wait for its turn; by default it is refused at once, and no
        connection is held.
    headers: how all responses tell what is left: "draft-11", "legacy" or None.
    on_refuse: a function of the request and the `RateLimited` that gives another response, or
        None for the usual one. It gets the fields and a `Retry-After` where it has none.

    The functions may be async. A refusal has a `Retry-After` in whole seconds, rounded up, and a
    problem (RFC 9457) for a body; with 503 where the load controller refused. A websocket is
    refused with the same response. A handler finds its permit as `request[PERMIT]`. A request is
    in flight until its handler ends.

    Raises `TypeError` or `ValueError` for options that are none of these.
    """
    if isinstance(key, ClientAddress):
        behind = key
        key = lambda request: behind.of(request.remote, _raw(request))  # noqa: E731
    rule = Rule[web.Request](
        limiter,
        key=key,
        cost=cost,
        limit=limit,
        exempt=exempt,
        max_wait=max_wait,
        headers=headers,
        on_refuse=on_refuse,
    )

    if any(getattr(other, "limiter", None) is limiter for other in app.middlewares):
        raise ValueError(f"{limiter!r} is set up on this application already")
    # A key of its own, as there may be another limit on this application, or on one above it.
    own_call = _key(f"aiolimit.call.{id(rule)}", tuple)

    @web.middleware
    async def decide(request: web.Request, handler: _Handler) -> web.StreamResponse:
        if rule.has_exempt and await rule.is_exempt(request, _path(request)):
            return await handler(request)
        call = await rule.ask(request)
        try:
            await call.permit.__aenter__()
        except RateLimited as refused:
            return await _response(rule, request, refused)
        # Not one `async with` around all: a RateLimited of the handler's own is not ours.
        try:
            request[PERMIT] = call.permit
            request[own_call] = call.key, call.limit
            return await handler(request)
        finally:
            call.permit.__aexit__(None, None, None)  # not awaited: nothing can stop it

    async def tell(request: web.Request, response: web.StreamResponse) -> None:
        found = request.get(own_call)
        if found is not None:
            raw = [
                (name.lower().encode(), value.encode()) for name, value in response.headers.items()
            ]
            for name, value in rule.answers.onto(raw, *found):
                if name in NAMES:
                    response.headers[name.decode()] = value.decode()

    decide.limiter = limiter  # type: ignore[attr-defined]
    app.middlewares.append(decide)
    app.on_response_prepare.append(tell)
    if limiter.load is not None:
        controller = limiter.load

        async def under_control(_app: web.Application) -> AsyncIterator[None]:
            async with controller:
                yield

        app.cleanup_ctx.append(under_control)


async def _response(
    rule: Rule[web.Request], request: web.Request, refused: RateLimited
) -> web.StreamResponse:
    refusal = rule.answers.refusal(refused)
    own = await rule.own_response(request, refused)
    if own is None:
        return _usual(refusal)
    response: web.StreamResponse = own
    for name, value in refusal.headers:
        if not name.startswith(b"content-"):
            response.headers.setdefault(name.decode(), value.decode())
    return response


def _usual(refusal: Refusal) -> web.Response:
    headers = {
        name.decode(): value.decode()
        for name, value in refusal.headers
        if name != b"content-length"  # aiohttp's own, which knows HEAD and compression
    }
    return web.Response(status=refusal.status, body=refusal.body, headers=headers)


def _raw(request: web.Request) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in request.raw_headers]
