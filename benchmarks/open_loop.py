"""An HTTP client that sends when it planned to, whatever the server does.

A client that waits for an answer before it asks again slows down together with the server, and so
hides what an overload does. This one plans all times before it starts, and counts each request's
latency from its planned time, so that its own delays are in the figures instead of out of sight.

It has to send 10 000 requests a second from one core, where asyncio would spend the core on
itself. So it is a bare epoll loop: one `write` and one or two `read` a request. The connections are
open before the load: who opens them under load measures the accept queue of the kernel, which
drops requests that no limiter ever sees, and then a server without protection seems to do well.
"""

import gc
import os
import random
import resource
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import linear_regression
from time import perf_counter
from types import TracebackType
from typing import Final, Self

__all__ = [
    "BROKEN",
    "LOST",
    "UNANSWERED",
    "Answers",
    "Connections",
    "allow_many_files",
    "closed_loop",
    "open_loop",
    "poisson",
]

UNANSWERED: Final = 0  # no answer before the run ended
LOST: Final = -1  # not sent: every connection still waited for an answer
BROKEN: Final = -2  # the server closed the connection instead of answering

_REQUEST: Final = b"GET / HTTP/1.1\r\nhost: overload\r\n\r\n"
_LENGTH: Final = b"content-length: "
_ALONE: Final = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # struct linger: on, 0 s


@dataclass(frozen=True, slots=True)
class Answers:
    """What became of each request. All times are seconds from the begin of the load."""

    planned: Sequence[float]
    status: list[int]  # of the answer, or one of the three constants above
    answered: list[float]
    lateness: list[float]  # of those sent: how long after its time


def allow_many_files() -> None:
    """Raise the limit of open files as far as this user may: each connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def poisson(rate: float, seconds: float, seed: int, after: float = 0.0) -> list[float]:
    """The times of independent users: exponential gaps, the same for the same seed."""
    chance = random.Random(seed)
    times: list[float] = []
    time = after + chance.expovariate(rate)
    while time < after + seconds:
        times.append(time)
        time += chance.expovariate(rate)
    return times


class Connections:
    """Keep-alive connections to one server, each with at most one request under way."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sockets: dict[int, socket.socket] = {}
        self._begun: dict[int, bytes] = {}  # what has arrived of an answer, by file number
        # First of all files: `select` takes only file numbers under 1024.
        self._epoll = select.epoll()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        for each in self._sockets.values():
            each.close()
        self._epoll.close()

    def open(self, count: int) -> None:
        """Open so many more. The kernel has them then; the server must still accept them."""
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", self._port), timeout=10)
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Closed by a reset: thousands of closed connections a run would hold their ports.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ALONE)
            self._sockets[one.fileno()] = one
            self._epoll.register(one, select.EPOLLIN)

    def files(self) -> list[int]:
        """The file numbers of those that are open."""
        return list(self._sockets)

    def ask(self, file: int) -> bool:
        """Send the request. False if the server has closed this connection."""
        try:
            os.write(file, _REQUEST)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def receive(self, wait: float) -> Iterator[tuple[int, int]]:
        """What arrives within `wait` seconds: file numbers and statuses. Ends at the first lot."""
        if wait > 0:
            # The timeout of epoll is in whole milliseconds; that of select is exact to some 50 µs.
            select.select([self._epoll], [], [], wait)
        for file, _ in self._epoll.poll(0):
            try:
                data = os.read(file, 65536)
            except ConnectionResetError:
                data = b""
            if not data:
                self._epoll.unregister(file)
                self._sockets.pop(file).close()
                yield file, BROKEN
                continue
            if file in self._begun:
                data = self._begun.pop(file) + data
            if status := _status(data):
                yield file, status
            else:
                self._begun[file] = data


def _status(data: bytes) -> int:
    """The status of a whole answer, 0 while a part of it is missing."""
    head = data.find(b"\r\n\r\n")
    if head < 0:
        return 0
    fields = data[: head + 2].lower()
    at = fields.find(_LENGTH)
    if at < 0:
        raise RuntimeError(f"an answer without a length: {data!r}")
    length = int(fields[at + len(_LENGTH) : fields.index(b"\r", at)])
    return int(data[9:12]) if len(data) >= head + 4 + length else 0


def open_loop(
    connections: Connections,
    planned: Sequence[float],
    *,
    end: float,
    event: tuple[float, Callable[[], object]] | None = None,
) -> Answers:
    """Send each request at its time, and read answers until `end`.

    event: something to do at a time, in between.
    """
    total = len(planned)
    found = Answers(planned, [UNANSWERED] * total, [0.0] * total, [])
    status, answered, lateness = found.status, found.answered, found.lateness
    free = connections.files()
    asked: dict[int, int] = {}  # the number of the request, by file number
    number = 0
    with _undisturbed():
        start = perf_counter() + 0.01
        while (now := perf_counter() - start) < end:
            if event and now >= event[0]:
                event[1]()
                event = None
            while number < total and planned[number] <= now:
                if not free:
                    status[number] = LOST
                elif connections.ask(file := free.pop()):
                    asked[file] = number
                    lateness.append(perf_counter() - start - planned[number])
                else:
                    status[number] = BROKEN
                number += 1
            due = planned[number] if number < total else end
            for file, code in connections.receive(due - perf_counter() + start):
                one = asked.pop(file, None)
                if one is not None:
                    status[one] = code
                    answered[one] = perf_counter() - start
                if code != BROKEN:
                    free.append(file)
    return found


def closed_loop(
    connections: Connections, *, settle: float, seconds: float, observe: Callable[[], float]
) -> tuple[float, float]:
    """Ask again at each answer. Returns answers per second, and what `observe` rose by for each.

    Answers come in bursts, so that a count depends on which burst was the last: the rate is the
    slope of the straight line through all of them.

    settle: the seconds before that do not count.
    """
    for file in connections.files():
        connections.ask(file)
    times: list[float] = []
    observed = 0.0
    counting = False
    with _undisturbed():
        start = perf_counter() + settle
        while (now := perf_counter()) < start + seconds:
            if not counting and now >= start:
                counting, times, observed = True, [], observe()
            for file, status in connections.receive(0.01):
                if status == BROKEN or not connections.ask(file):
                    raise RuntimeError("the server closed a connection")
                times.append(perf_counter())
        observed = observe() - observed
    return linear_regression(times, range(len(times))).slope, observed / len(times)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A garbage collection here would be a pause that the server gets the blame for."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
