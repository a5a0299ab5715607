"""Limits for clients of httpx: a transport that waits its turn, and learns from the server.

```python
import httpx

client = httpx.AsyncClient(transport=RateLimitTransport(Limiter("4/s")))
```

A client that is given a transport makes none of its own: it takes no proxies from the environment,
and does not use its `verify`, `http2`, `limits` and the like. Give those to an
`httpx.AsyncHTTPTransport`, and that to this one. For one host only:
`mounts={"all://api.github.com": RateLimitTransport(...)}`.
"""

from collections.abc import Callable, Hashable
from types import TracebackType
from typing import Self

import httpx
from httpx import AsyncBaseTransport, AsyncHTTPTransport, Request, Response

from aiolimit.http.client import Charge, Classify, ClientLimits, permits_of
from aiolimit.http.feedback import CAP
from aiolimit.http.httpx_adapter import HttpxAdapter
from aiolimit.limiter import Limiter

__all__ = ["Charge", "RateLimitTransport", "permits_of"]


class RateLimitTransport(AsyncBaseTransport):
    """Sends requests at the pace of limiters, and of what the server says.

    limits: limiters, or `Charge`s where a request costs something else than 1. Several clients may
        share one.
    transport: what sends; by default an `AsyncHTTPTransport`.
    key: a function of the request; by default the host, so that each has its own quota.
    max_wait: seconds a request may wait for its turn. The `pool` timeout of the client bounds it,
        too (5 seconds unless it is told otherwise), and the limiter's own `max_wait`.
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
        transport: AsyncBaseTransport | None = None,
        key: Callable[[Request], Hashable] | None = None,
        max_wait: float | None = None,
        retries: int = 0,
        cap: float = CAP,
        classify: Classify | None = None,
    ) -> None:
        if transport is not None and not isinstance(transport, AsyncBaseTransport):
            raise TypeError(f"transport must be an AsyncBaseTransport of httpx, not {transport!r}")
        self._limits = ClientLimits[Request, Response](
            HttpxAdapter(vars(httpx)),
            limits,
            key=key,
            max_wait=max_wait,
            retries=retries,
            cap=cap,
            classify=classify,
        )
        self._transport = AsyncHTTPTransport() if transport is None else transport

    async def handle_async_request(self, request: Request) -> Response:
        """Send one request in its turn."""
        bound: float | None = request.extensions.get("timeout", {}).get("pool")
        return await self._limits.run(request, self._transport.handle_async_request, bound)

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._transport.__aexit__(exc_type, exc_value, traceback)

    async def aclose(self) -> None:
        """Close the transport that sends."""
        await self._transport.aclose()
