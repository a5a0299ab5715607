"""The server of the overload benchmark: a real uvicorn in a process of its own, on one core.

Its handler burns CPU by the clock of its own thread, so that a request costs the same work whoever
else uses the machine, and sleeps for the part that would be a database. SIGUSR1 doubles the CPU of
each request from then on. A signal, because an HTTP request would stand in the queue behind the
overload.

It prints one line of JSON, the port and what speaks HTTP, and serves until it is killed.
`/-/state` is outside the protection: what the server knows of itself, for before and after a run.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
from dataclasses import dataclass
from time import thread_time
from typing import Any, Final

import uvicorn

from benchmarks.open_loop import allow_many_files
from benchmarks.overload_arms import STATE, Message, Receive, Send, protect, say

__all__ = ["STATE", "VARIANTS", "Variant"]

_BACKLOG: Final = 4096  # no connection waits in it once the load begins; the client looks
_KEEP_ALIVE: Final = 600  # seconds; a connection lasts as long as its run
_BODY: Final = b'{"id": 42}'
_HEADERS: Final = [(b"content-type", b"application/json"), (b"content-length", b"10")]


@dataclass(frozen=True, slots=True)
class Variant:
    """What a request takes, in seconds."""

    cpu: float
    io: float

    def __str__(self) -> str:
        return f"{self.cpu * 1e3:g} ms CPU + {self.io * 1e3:g} ms I/O"


VARIANTS: Final = {
    "A": Variant(0.005, 0.020),
    "B": Variant(0.001, 0.005),
    "C": Variant(0.020, 0.0),
}


class _Work:
    """The application that is to be protected."""

    def __init__(self, variant: Variant, *, io_first: bool) -> None:
        self.cpu = variant.cpu
        self.io = variant.io
        self.io_first = io_first
        self.done = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if self.io_first and self.io:
            await asyncio.sleep(self.io)
        end = thread_time() + self.cpu
        while thread_time() < end:
            pass
        if not self.io_first and self.io:
            await asyncio.sleep(self.io)
        self.done += 1
        await say(send, 200, _HEADERS, _BODY)


async def _lifespan(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})


def main() -> None:
    """Serve."""
    options = _options()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    allow_many_files()
    variant = VARIANTS[options.variant]
    work = _Work(variant, io_first=options.io_first)
    protection = protect(
        options.arm, work, capacity=options.capacity, latency=variant.cpu + variant.io
    )

    def double(*_: object) -> None:
        work.cpu = 2 * variant.cpu

    signal.signal(signal.SIGUSR1, double)

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == STATE:
            body = json.dumps(state()).encode()
            await say(send, 200, [(b"content-length", b"%d" % len(body))], body)
        else:
            await protection.app(scope, receive, send)

    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=protection.protocol or options.http,
        ws="none",
        lifespan="on",
        log_level="error",
        access_log=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE,
    )
    config.load()
    server = uvicorn.Server(config)

    def state() -> dict[str, Any]:
        connections = len(server.server_state.connections)
        return {"connections": connections, "done": work.done, "facts": protection.facts()}

    # TCP by name: asyncio sets TCP_NODELAY only where it sees it. Without it the body of an answer
    # waits 40 ms for the acknowledgement of its head.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(_BACKLOG)
    modules = [one.__module__.rpartition(".")[2] for one in config.http_protocol_class.__mro__]
    speaks = next(name.removesuffix("_impl") for name in modules if name.endswith("_impl"))
    print(json.dumps({"port": listener.getsockname()[1], "http": speaks}), flush=True)
    server.run(sockets=[listener])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--arm", default="nothing")
    parser.add_argument("--variant", choices=VARIANTS, default="A")
    parser.add_argument("--io-first", action="store_true")
    parser.add_argument("--capacity", type=float, default=100.0)
    parser.add_argument("--core", type=int)
    parser.add_argument("--http", default="auto")
    return parser.parse_args()


if __name__ == "__main__":
    main()
