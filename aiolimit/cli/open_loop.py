"""A lean HTTP client that sends when it planned to, whatever the service does.

A client that waits for an answer before it asks again slows down together with the service, and so
hides what an overload does. Here every request has its time, and its answer is timed from then, so
that the client's own delays are in the figures instead of out of sight.

It knows no more of HTTP than the demo's services need: answers with a `content-length`, one after
the other on connections that stay open.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import NamedTuple, Self, cast
from urllib.parse import urlsplit

__all__ = ["Answer", "Client", "open_loop"]

_PATIENCE = 10.0  # seconds that a request waits for its answer


class Answer(NamedTuple):
    """What came back."""

    status: int
    body: bytes


class Client:
    """Keep-alive connections to one service, each with at most one request under way."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._all: set[_Connection] = set()
        # The one that has been idle the longest goes next: none is idle until the service ends it.
        self._free: deque[_Connection] = deque()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._all:
            connection.abort()

    async def open(self, count: int) -> None:
        """Open so many connections now: under load that would take time."""
        for _ in range(count):
            self._free.append(await self._connect())

    async def request(self, method: str, path: str, key: str = "") -> Answer:
        """Send a request and wait for its answer; raises `OSError` if there is none."""
        head = f"{method} {path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n"
        if key:
            head += f"authorization: Bearer {key}\r\n"
        connection = await self._idle()
        async with asyncio.timeout(_PATIENCE):
            try:
                return await connection.ask(f"{head}content-length: 0\r\n\r\n".encode())
            except asyncio.CancelledError:
                connection.abort()  # the answer to this one must not become that to the next
                raise

    async def _idle(self) -> "_Connection":
        while self._free:
            connection = self._free.popleft()
            if connection in self._all:  # the service has not ended it meanwhile
                return connection
        return await self._connect()

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: _Connection(self._all, self._free), self._host, self._port
        )
        return connection


class _Connection(asyncio.Protocol):
    def __init__(self, every: set["_Connection"], free: deque["_Connection"]) -> None:
        self._every = every
        self._free = free
        self._received = b""
        self._answer: asyncio.Future[Answer] | None = None

    def ask(self, request: bytes) -> asyncio.Future[Answer]:
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._every.add(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        answer = _whole(self._received)
        if answer is None:
            return
        self._received = b""
        waiting, self._answer = self._answer, None
        if waiting is not None and not waiting.done():
            self._free.append(self)
            waiting.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._every.discard(self)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError("the service ended the connection"))


def _whole(data: bytes) -> Answer | None:
    """An answer, once all of it has arrived."""
    head, end, body = data.partition(b"\r\n\r\n")
    if not end:
        return None
    status, *fields = head.lower().split(b"\r\n")
    length = next(int(field[15:]) for field in fields if field.startswith(b"content-length:"))
    return Answer(int(status.split()[1]), body) if len(body) >= length else None


async def open_loop(
    planned: Iterable[float], begun: float, send: Callable[[float], Coroutine[None, None, None]]
) -> None:
    """Call `send` at each of the times, which are seconds from `begun`; returns after the last."""
    clock = asyncio.get_running_loop().time
    async with asyncio.TaskGroup() as group:
        for at in planned:
            await asyncio.sleep(max(0.0, begun + at - clock()))
            group.create_task(send(at))
