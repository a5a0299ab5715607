"""Limits for any ASGI application: FastAPI, Starlette, Litestar, Quart and others.

```python
app = RateLimitMiddleware(app, limiter=Limiter("100/min"))
```

It stands before routing and needs no route, so nothing below it escapes. The application is
called once, inside the permit, and what it raises leaves unchanged: only the decision is guarded.
"""

from collections.abc import Awaitable, Callable, Collection, Hashable, MutableMapping
from functools import lru_cache
from typing import Any, TypeAlias

from aiolimit.arguments import check_wait
from aiolimit.errors import Overloaded, RateLimited
from aiolimit.http import fields
from aiolimit.http.address import peer
from aiolimit.http.lifespan import run_with
from aiolimit.limiter import Limiter

__all__ = ["RateLimitMiddleware"]

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_TRY_AGAIN_LATER = 1013  # the close code of a websocket that is refused for a while (IANA)


class RateLimitMiddleware:
    """Refuses what is over the limit with 429, before the application sees it.

    app: the ASGI application.
    limiter: what limits; each key has its own quota.
    key: a function of the scope that names the caller; by default the peer's address, as the
        server tells it. Forwarded headers are not looked at: whoever can write them would choose
        the key. (uvicorn itself believes X-Forwarded-For of whoever connects from 127.0.0.1,
        unless it runs with `--no-proxy-headers`.)
    exempt: paths that are never limited, or a function of the scope that tells.
    max_wait: seconds a request may wait for its turn, in place of the limiter's own `max_wait`;
        by default it is refused at once, and no connection is held.

    A refusal has a `Retry-After` in whole seconds, rounded up, at least 1, and a JSON body. A
    websocket is refused before it is accepted: with the same response if the server can send
    one, else by closing with code 1013. `lifespan` passes.
    """

    __slots__ = ("_exempt", "_key", "_limiter", "_max_wait", "app")

    def __init__(
        self,
        app: App,
        limiter: Limiter,
        *,
        key: Callable[[Scope], Hashable] = peer,
        exempt: Collection[str] | Callable[[Scope], bool] | None = None,
        max_wait: float | None = 0,
    ) -> None:
        if not isinstance(limiter, Limiter):
            raise TypeError(f"limiter must be a Limiter, not {limiter!r}")
        if not callable(key):
            raise TypeError(f"key must be a function of the scope, not {key!r}")
        self.app = app
        self._limiter = limiter
        self._key = key
        self._exempt = _exempt(exempt)
        self._max_wait = check_wait(max_wait)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request or websocket pass to the application, or refuse it."""
        kind = scope["type"]
        if kind == "lifespan" and self._limiter.load is not None:
            await run_with(self._limiter.load, self.app, scope, receive, send)
            return
        if (kind != "http" and kind != "websocket") or (self._exempt and self._exempt(scope)):
            await self.app(scope, receive, send)
            return
        permit = self._limiter.acquire(self._key(scope), max_wait=self._max_wait)
        try:
            await permit.__aenter__()
        except RateLimited as refused:
            await _refuse(refused, scope, receive, send)
            return
        # Not one `async with` around all: a RateLimited of the application's own is not ours.
        try:
            await self.app(scope, receive, send)
        finally:
            await permit.__aexit__(None, None, None)


def _exempt(
    exempt: Collection[str] | Callable[[Scope], bool] | None,
) -> Callable[[Scope], bool] | None:
    if exempt is None or callable(exempt):
        return exempt
    if isinstance(exempt, str) or not all(isinstance(path, str) for path in exempt):
        raise TypeError(f"exempt must be paths or a function of the scope, not {exempt!r}")
    paths = frozenset(exempt)
    return lambda scope: scope["path"] in paths


async def _refuse(refused: RateLimited, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()  # the handshake, which has to be read before it is answered
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": _TRY_AGAIN_LATER, "reason": ""})
            return
        prefix = "websocket.http.response"
    else:
        prefix = "http.response"
    if isinstance(refused, Overloaded):
        headers, body = _overloaded(fields.retry_after(refused.retry_after))
    else:
        headers, body = _raw(fields.refusal_headers(refused)), fields.refusal_body(refused)
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": f"{prefix}.start", "status": fields.status(refused), "headers": headers})
    await send({"type": f"{prefix}.body", "body": body})


def _raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


@lru_cache
def _overloaded(seconds: int) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """The answer of an overloaded process, which has no time to make it anew each time."""
    return _raw(fields.overload_headers(seconds)), fields.overload_body(seconds)
