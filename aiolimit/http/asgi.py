"""Limits for any ASGI application: FastAPI, Starlette, Litestar, Quart and others.

```python
app = RateLimitMiddleware(app, limiter=Limiter("100/min"))
```

It stands before routing and needs no route, so nothing below it escapes. The application is
called once, inside the permit, and what it raises leaves unchanged: only the decision is guarded.
"""

from collections.abc import Awaitable, Callable, Hashable
from inspect import isawaitable
from typing import Final

from aiolimit.errors import RateLimited
from aiolimit.http.address import peer
from aiolimit.http.answers import Refusal
from aiolimit.http.asgi_types import (
    DENIAL,
    TRY_AGAIN_LATER,
    App,
    Message,
    Receive,
    Scope,
    Send,
)
from aiolimit.http.fields import Dialect, Pairs
from aiolimit.http.lifespan import run_with
from aiolimit.http.rule import Exempt, Limits, Rule, Told
from aiolimit.limiter import Limiter

__all__ = ["PERMIT", "RateLimitMiddleware", "is_preflight"]

#: Where the application finds its permit in the scope, as to settle the true cost with `adjust`.
PERMIT: Final = "aiolimit.permit"

_STARTS: Final = frozenset(("http.response.start", "websocket.accept", f"{DENIAL}.start"))


def is_preflight(scope: Scope) -> bool:
    """Whether a request is a CORS preflight, which a browser sends of its own accord."""
    if scope.get("method") != "OPTIONS":
        return False
    return any(name == b"access-control-request-method" for name, _ in scope.get("headers", ()))


class RateLimitMiddleware:
    """Refuses what is over the limit with 429, before the application sees it.

    app: the ASGI application.
    limiter: what limits; each key has its own quota.
    key: a function of the scope that names the caller; by default the peer's address, as the
        server tells it. Forwarded headers are not looked at: whoever can write them would choose
        the key. Behind a proxy give it a `ClientAddress`. (uvicorn itself believes
        X-Forwarded-For of whoever connects from 127.0.0.1, unless it runs with
        `--no-proxy-headers`.)
    cost: what a request costs, 1 by default, or a function of the scope that tells.
    limit: a function of the scope that tells the limit of this request, as `Limiter.acquire` has
        it: a number or a tuple, `UNLIMITED`, or None for the limiter's own.
    exempt: what is never limited: paths ("/health"), all below a path ("/metrics/*"), and functions
        of the scope, such as `is_preflight`, or one such function.
    max_wait: seconds a request may wait for its turn, in place of the limiter's own `max_wait`;
        by default it is refused at once, and no connection is held.
    headers: how all responses tell what is left: "draft-11", the RateLimit fields, "legacy", the
        `X-RateLimit-*` triple, or None, not at all.
    on_refuse: a function of the scope and the `RateLimited` that gives another response: an ASGI
        application, as all of Starlette's responses are, or None for the usual one. It gets the
        fields and a `Retry-After` where it has none.

    All functions may be async. A refusal has a `Retry-After` in whole seconds, rounded up, at least
    1, and a problem (RFC 9457) for a body; with 503 where the load controller refused. A websocket
    is refused before it is accepted: with the same response if the server can send one, else by
    closing with code 1013. The application finds the permit in the scope, under `PERMIT`. While it
    serves a lifespan the limiter's load controller runs.

    Raises `TypeError` or `ValueError` for options that are none of these.
    """

    __slots__ = (
        "_enter_at_once",
        "_has_exempt",
        "_is_usual",
        "_key",
        "_onto",
        "_refuse_at_once",
        "_rule",
        "_tells",
        "app",
    )

    def __init__(
        self,
        app: App,
        limiter: Limiter,
        *,
        key: Told[Scope, Hashable] = peer,
        cost: float | Told[Scope, float] = 1,
        limit: Told[Scope, Limits] | None = None,
        exempt: Exempt[Scope] = None,
        max_wait: float | None = 0,
        headers: Dialect = "draft-11",
        on_refuse: Callable[[Scope, RateLimited], App | None | Awaitable[App | None]] | None = None,
    ) -> None:
        rule = self._rule = Rule[Scope](
            limiter,
            key=key,
            cost=cost,
            limit=limit,
            exempt=exempt,
            max_wait=max_wait,
            headers=headers,
            on_refuse=on_refuse,
        )
        self.app = app
        self._tells = headers is not None
        # Bound here, as looking them up costs each request a little.
        self._has_exempt = rule.has_exempt
        self._is_usual = rule.is_usual
        self._key = key
        self._enter_at_once = limiter._enter_at_once
        self._refuse_at_once = rule.answers.at_once
        self._onto = rule.answers.onto

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request or websocket pass to the application, or refuse it."""
        kind = scope["type"]
        if kind != "http" and kind != "websocket":
            if kind == "lifespan" and self._rule.limiter.load is not None:
                await run_with(self._rule.limiter.load, self.app, scope, receive, send)
            else:
                await self.app(scope, receive, send)
            return
        if self._has_exempt and await self._rule.is_exempt(scope, scope["path"]):
            await self.app(scope, receive, send)
            return
        limit: Limits = None
        is_in = False
        if self._is_usual:
            key = self._key(scope)
            if type(key) is not str and isawaitable(key):
                key = await key
            permit = self._enter_at_once(key)
            is_in = permit is not None
            if permit is None:
                refusal = self._refuse_at_once(key)
                if refusal is not None:
                    await _send(refusal, scope, receive, send)
                    return
                permit = self._rule.limiter.acquire(key, 1, 0)
        else:
            call = await self._rule.ask(scope)
            key, limit, permit = call.key, call.limit, call.permit
        if not is_in:
            try:
                await permit.__aenter__()
            except RateLimited as refused:
                await self._refuse(refused, scope, receive, send)
                return
        scope[PERMIT] = permit
        onto = self._onto

        def tell(message: Message) -> Awaitable[None]:
            # The fields go out with the start of the response, as they are by then.
            if message["type"] in _STARTS:
                headers = onto(message.get("headers", ()), key, limit)
                message = {**message, "headers": headers}
            return send(message)

        # Not one `async with` around all: a RateLimited of the application's own is not ours.
        try:
            await self.app(scope, receive, tell if self._tells else send)
        finally:
            permit.__aexit__(None, None, None)  # not awaited: it is done, and nothing can stop it

    async def _refuse(
        self,
        refused: RateLimited,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        refusal = self._rule.answers.refusal(refused)
        response = await self._rule.own_response(scope, refused)
        if response is None or (scope["type"] == "websocket" and not _can_deny(scope)):
            await _send(refusal, scope, receive, send)
            return
        ours = [pair for pair in refusal.headers if not pair[0].startswith(b"content-")]

        async def complete(message: Message) -> None:
            if message["type"] in _STARTS:
                theirs = list(message.get("headers", ()))
                message = {**message, "headers": _completed(theirs, ours)}
            await send(message)

        if scope["type"] == "websocket":
            await receive()  # the handshake, which has to be read before it is answered
        await response(scope, receive, complete)


def _completed(theirs: Pairs, ours: Pairs) -> Pairs:
    """The headers of a response of the user's own, with those of ours that it does not have."""
    names = {name.lower() for name, _ in theirs}
    return [*theirs, *(pair for pair in ours if pair[0] not in names)]


def _can_deny(scope: Scope) -> bool:
    return DENIAL in (scope.get("extensions") or {})


async def _send(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    start, rest = "http.response.start", "http.response.body"
    if scope["type"] == "websocket":
        await receive()  # the handshake, which has to be read before it is answered
        if not _can_deny(scope):
            await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": ""})
            return
        start, rest = f"{DENIAL}.start", f"{DENIAL}.body"
    status, headers, body = refusal
    # A list of its own: who stands further out may add to it.
    await send({"type": start, "status": status, "headers": [*headers]})
    await send({"type": rest, "body": body})
