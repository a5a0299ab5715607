"""Limits for clients of aiohttp: a middleware that waits its turn, and learns from the server.

```python
import aiohttp

limit = RateLimitMiddleware(Limiter("4/s"))


async def fetch(url):
    async with aiohttp.ClientSession(middlewares=(limit,)) as session:
        async with session.get(url) as response:
            return await response.text()
```

It runs for each request that is sent: once for each redirect, and again where aiohttp asks anew
because a kept connection was closed.
"""

from collections.abc import Awaitable, Callable, Hashable
from types import CellType
from typing import Any, Final, TypeAlias

from aiohttp import (
    ClientConnectorError,
    ClientRequest,
    ClientResponse,
    ClientTimeout,
    ConnectionTimeoutError,
)

from aiolimit.http.client import Charge, Classify, ClientLimits, permits_of
from aiolimit.http.feedback import CAP, Headers
from aiolimit.limiter import Limiter

__all__ = ["Charge", "RateLimitMiddleware", "permits_of"]

_KEPT: Final = 65_536  # bytes of a refusal that are read so that its connection can be used again

_CHAIN: Final = 20  # middlewares after this one

_Handler: TypeAlias = Callable[[ClientRequest], Awaitable[ClientResponse]]


class RateLimitMiddleware:
    """Sends requests at the pace of limiters, and of what the server says.

    limits: limiters, or `Charge`s where a request costs something else than 1. Several sessions may
        share one.
    key: a function of the request; by default the host, so that each has its own quota.
    max_wait: seconds a request may wait for its turn. The `total` timeout bounds it, too (300
        seconds unless aiohttp is told otherwise), and the limiter's own `max_wait`.
    retries: how often a request that was refused is sent again, if its body can be. By default it
        is not, and the refusal is handed on.
    cap: the most seconds that a server can make us wait.
    classify: a function of the response and the `Feedback` that was read from it, for limits that
        come as a 403 or a 200: True, False, or the seconds for which it refuses; None for what
        the headers say. It may be async, and read the body.

    After a 429, or a 503 or 403 that says for how long, nobody who shares the limiter asks for that
    key until then. What the server's fields say is left is not exceeded.

    Sending raises `RateLimited` at once where the turn would come too late. With `permits_of` the
    permits of a response are found, to settle its true cost. Raises `TypeError` or `ValueError`
    for options that are none of these.
    """

    def __init__(
        self,
        *limits: Limiter | Charge,
        key: Callable[[ClientRequest], Hashable] | None = None,
        max_wait: float | None = None,
        retries: int = 0,
        cap: float = CAP,
        classify: Classify | None = None,
    ) -> None:
        self._limits = ClientLimits[ClientRequest, ClientResponse](
            _Adapter(),
            limits,
            key=key,
            max_wait=max_wait,
            retries=retries,
            cap=cap,
            classify=classify,
        )

    async def __call__(self, request: ClientRequest, handler: _Handler) -> ClientResponse:
        """Send one request in its turn."""
        # aiohttp takes 0 for no bound, too.
        return await self._limits.run(request, handler, _timeout(request, handler).total or None)


class _Adapter:
    """See `client.Adapter`."""

    def host(self, request: ClientRequest) -> Hashable:
        return request.url.host

    def can_repeat(self, request: ClientRequest) -> bool:
        # What waits for leave to send its body has given up its wait with the first answer.
        waits_for_leave = getattr(request, "_continue", None) is not None
        return not waits_for_leave and not getattr(request.body, "consumed", False)

    def never_left(self, error: Exception) -> bool:
        return isinstance(error, ClientConnectorError | ConnectionTimeoutError)

    def facts(self, response: ClientResponse) -> tuple[int, Headers]:
        return response.status, response.raw_headers

    def shown(
        self, _request: ClientRequest, response: ClientResponse
    ) -> tuple[ClientResponse, ClientResponse]:
        return response, response  # it keeps what `read` has read

    async def put_by(self, response: ClientResponse) -> ClientResponse | None:
        length = response.content_length
        if length is None or length > _KEPT:
            response.close()
            return None
        await response.read()  # it keeps what was read
        return response

    async def discard(self, response: ClientResponse) -> None:
        response.close()


def _timeout(request: ClientRequest, handler: _Handler) -> ClientTimeout:
    """The timeout of this request.

    aiohttp tells a middleware only the session's. A call may have one of its own, which the
    function at the end of the chain holds; where that looks otherwise, the session's is used, and
    aiohttp itself ends a wait that takes too long.
    """
    function: Any = handler
    for _ in range(_CHAIN):
        code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
        if code is None or cells is None:
            break
        held = {name: _content(cell) for name, cell in zip(code.co_freevars, cells, strict=True)}
        for value in held.values():
            if isinstance(value, ClientTimeout):
                return value
        function = held.get("handler", held.get("next_h"))
    timeout: ClientTimeout = request.session.timeout
    return timeout


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that has no value yet
        return None
