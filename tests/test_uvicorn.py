"""uvicorn's protocol that refuses before parsing: real servers and raw sockets, on both parsers.

The clock of the controller stands still, so that it takes no steps and the gate stays as the test
sets it. Where the middleware is not before the application, a 200 tells that a request came past.
"""

import asyncio
import contextlib
import http.client
import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from math import inf
from typing import Any, cast

import httpx
import pytest
import uvicorn
import websockets
from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from aiolimit import Limiter, LoadController
from aiolimit.http.asgi import RateLimitMiddleware
from aiolimit.http.uvicorn import overload_protocol
from aiolimit.testing import FakeClock
from tests.serving import serving

PARSERS = ["h11", "httptools"]
GET = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


@pytest.fixture(params=PARSERS)
def parser(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    name: str = request.param
    return name


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Says what it was asked, and how many bytes came with it."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "hello"})
        await send({"type": "websocket.close"})
        return
    got, more = 0, True
    while more:
        message = await receive()
        got += len(message["body"])
        more = message["more_body"]
    body = b"%s %s %d" % (scope["method"].encode(), scope["path"].encode(), got)
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", b"%d" % len(body))],
        }
    )
    await send({"type": "http.response.body", "body": body})


class Place:
    """A server, and what it is protected by."""

    def __init__(self, address: str, controller: LoadController, protocol: Any = None) -> None:
        self.address, self.controller, self.protocol = address, controller, protocol
        self.host, port = address.split(":")
        self.port = int(port)

    def close(self) -> None:
        self.controller.gate.set_limits(0, inf, inf)

    def open(self) -> None:
        self.controller.gate.set_limits(inf, inf, inf)

    @property
    def early(self) -> int:
        return self.controller.gate.early

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator["Wire"]:
        reader, writer = await asyncio.open_connection(self.host, self.port)
        wire = Wire(reader, writer)
        try:
            yield wire
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def has_read(self) -> None:
        """What was written before has come to the server: one request later, it is refused."""
        assert (await self.say(GET))[0] == 503

    async def say(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        """One request on a connection of its own."""
        async with self.connected() as wire:
            return await wire.say(data)


class Wire:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self, *, body: bool = True) -> tuple[int, dict[str, str], bytes]:
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 20)).decode()
        first, *lines = head.rstrip().split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines)
        length = int(fields.get("content-length", 0)) if body else 0
        return int(first.split()[1]), fields, await self.reader.readexactly(length)

    async def say(self, data: bytes, *, body: bool = True) -> tuple[int, dict[str, str], bytes]:
        self.writer.write(data)
        return await self.answer(body=body)

    async def end(self) -> bytes:
        """What is left until the server closes."""
        return await asyncio.wait_for(self.reader.read(), 20)


@contextlib.asynccontextmanager
async def place(
    parser: Any, application: Any = app, *, dry_run: bool = False, exempt: Any = (), **options: Any
) -> AsyncIterator[Place]:
    controller = LoadController(clock=FakeClock(), dry_run=dry_run)
    protocol = overload_protocol(controller, exempt=exempt, http=parser)
    async with controller, serving(application, http=protocol, **options) as address:
        yield Place(address, controller, protocol)


async def test_an_open_gate_lets_all_pass(parser: str) -> None:
    async with place(parser) as there, there.connected() as wire:
        for _ in range(2):
            assert (await wire.say(GET))[::2] == (200, b"GET / 0")
        there.close()
        assert (await wire.say(GET))[0] == 503
        there.open()
        assert (await wire.say(GET))[0] == 200
        assert there.early == there.controller.gate.refused == 1


async def test_a_refusal_says_what_the_middleware_says(parser: str) -> None:
    clock = FakeClock()
    controller = LoadController(clock=clock)
    limiter = Limiter("5/min", load=controller, clock=clock)
    protected = RateLimitMiddleware(app, limiter=limiter)
    protocol = overload_protocol(controller, http=parser)  # type: ignore[arg-type]
    said = []
    for speaks in (protocol, parser):
        async with serving(protected, http=speaks, headers=[("X-Ours", "yes")]) as address:
            there = Place(address, controller)
            there.close()
            async with there.connected() as wire:
                said.append([await wire.say(GET), await wire.say(b"HEAD" + GET[3:], body=False)])
    early, late = said
    for (status, fields, body), (_, its_fields, its_body) in zip(early, late, strict=True):
        assert status == 503
        assert list(fields) == list(its_fields)
        assert {"date", "server", "x-ours", "retry-after"} < set(fields)
        if body:
            assert json.loads(body)["retry-after"] == int(fields["retry-after"]) >= 1
            assert re.sub(rb"\d+", b"", body) == re.sub(rb"\d+", b"", its_body)
    assert early[1][2] == b""
    assert limiter.statistics().rejected["overload"] == 2  # only those of the middleware's
    assert limiter.peek("127.0.0.1").remaining == 5


async def test_clients_understand_it(parser: str) -> None:
    async with place(parser) as there:
        there.close()

        def ask() -> tuple[int, str | None, bytes, int]:
            client = http.client.HTTPConnection(there.host, there.port, timeout=20)
            with contextlib.closing(client):
                for _ in range(2):  # the second on the same connection
                    client.request("GET", "/a?b=c")
                    answer = client.getresponse()
                    body = answer.read()
                return answer.status, answer.getheader("Retry-After"), body, client.sock.fileno()

        status, after, body, number = await asyncio.to_thread(ask)
        assert (status, number >= 0) == (503, True)
        assert json.loads(body)["retry-after"] == int(after or 0)
        async with httpx.AsyncClient(base_url=f"http://{there.address}") as client:
            answers = [await client.request(way, "/") for way in ("GET", "HEAD", "OPTIONS")]
            assert [answer.status_code for answer in answers] == [503] * 3
            assert [bool(answer.content) for answer in answers] == [True, False, True]
            assert there.early == 5
            there.open()
            assert (await client.delete("/x")).text == "DELETE /x 0"


# All that a parser has to see comes to the application, though the gate is closed.
PASSES = {
    "a body": b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\n\r\nabc",
    "a method with a body": b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n",
    "a body of GET": b"GET / HTTP/1.1\r\nHost: here\r\ncontent-length: 3\r\n\r\nabc",
    "a body later": b"GET / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n",
    "HTTP/1.0": b"GET / HTTP/1.0\r\nHost: here\r\n\r\n",
    "an upgrade that is not asked for": b"GET / HTTP/1.1\r\nHost: here\r\nUpgrade: x\r\n\r\n",
    "an upgrade": b"GET / HTTP/1.1\r\nHost: here\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    "TE": b"GET / HTTP/1.1\r\nHost: here\r\nConnection: TE\r\nTE: trailers\r\n\r\n",
    "Expect": b"GET / HTTP/1.1\r\nHost: here\r\nExpect: something\r\n\r\n",
    "a long head": b"GET / HTTP/1.1\r\nHost: here\r\nX: " + b"x" * 9000 + b"\r\n\r\n",
}


async def test_what_is_not_plain_comes_past(parser: str) -> None:
    async with place(parser) as there:
        there.close()
        for what, data in PASSES.items():
            async with there.connected() as wire:
                wire.writer.write(data)
                await there.has_read()
                if what == "a body later":
                    wire.writer.write(b"0\r\n\r\n")
                assert (await wire.answer())[0] == 200, what
        assert there.early == len(PASSES)  # those of `has_read`


# What others might read as something else than this room would.
ODD = [
    b"GET / HTTP/1.1\r\nHost: here\r\nContent-Length : 30\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: here\r\nA: b\nContent-Length: 30\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: here\r\nA: b\n\nGET /two HTTP/1.1\r\nHost: here\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: here\r\nA: b\r\n Content-Length: 30\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: here\r\nA: b\rContent-Length: 30\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: here\r\nA\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: here\r\nConnection: keep-alive, x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: here\r\nA: \0\r\n\r\n",
    b"GET / HTTP/1.1\r\nA: b\r\n\r\n",
    b"GET http://here/ HTTP/1.1\r\nHost: here\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: here\r\n\r\n",
    b"get / HTTP/1.1\r\nHost: here\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\r\n\r\n",
]


async def test_what_is_odd_is_left_to_the_parser(parser: str) -> None:
    async with place(parser) as there:
        there.close()
        for odd in ODD:
            async with there.connected() as wire:
                wire.writer.write(odd)
                wire.writer.write_eof()
                await wire.end()
            assert there.early == 0, odd


async def test_expect_is_answered_by_the_parser(parser: str) -> None:
    async with place(parser) as there, there.connected() as wire:
        there.close()
        wire.writer.write(
            b"PUT /up HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
        )
        assert (await wire.answer())[0] == 100
        assert (await wire.say(b"abc"))[::2] == (200, b"PUT /up 3")
        assert (await wire.say(GET))[0] == 503


async def test_two_requests_at_once_are_answered_in_order(parser: str) -> None:
    async with place(parser) as there, there.connected() as wire:
        there.close()
        one, two = GET.replace(b"/ ", b"/1 "), GET.replace(b"/ ", b"/2 ")
        wire.writer.write(one + two)
        assert [(await wire.answer())[2] for _ in range(2)] == [b"GET /1 0", b"GET /2 0"]
        # One and a half, where what begins last is not refused from its middle.
        wire.writer.write(one + b"GET /GET")
        assert (await wire.answer())[2] == b"GET /1 0"
        assert (await wire.say(GET[4:]))[2] == b"GET /GET/ 0"
        assert there.early == 0
        assert (await wire.say(GET))[0] == 503


async def test_what_comes_while_one_is_answered_waits_for_it(parser: str) -> None:
    asked, may = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            asked.set()
            await may.wait()
            await app(scope, receive, send)

    async with place(parser, slow) as there, there.connected() as wire:
        wire.writer.write(GET.replace(b"/ ", b"/first "))
        await asked.wait()
        there.close()
        wire.writer.write(GET.replace(b"/ ", b"/second "))
        async with there.connected() as other:
            assert (await other.say(GET))[0] == 503
        may.set()
        assert [(await wire.answer())[2] for _ in range(2)] == [b"GET /first 0", b"GET /second 0"]


async def test_an_answer_before_the_end_of_the_body(parser: str) -> None:
    async def hasty(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = [(b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b""})

    async with place(parser, hasty) as there, there.connected() as wire:
        head = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % len(GET)
        assert (await wire.say(head))[0] == 200
        there.close()
        wire.writer.write(GET)  # the body
        await there.has_read()
        assert (await wire.say(GET))[0] == 503
        assert there.early == 2


async def test_a_head_in_two_segments_is_read_by_the_parser(parser: str) -> None:
    async with place(parser) as there, there.connected() as wire:
        there.close()
        for cut in (1, 10, len(GET) - 1):
            wire.writer.write(GET[:cut])
            await there.has_read()
            assert (await wire.say(GET[cut:]))[::2] == (200, b"GET / 0")
        # The second segment looks like a request.
        wire.writer.write(b"GET / HTTP/1.1\r\nA: ")
        await there.has_read()
        assert (await wire.say(GET))[::2] == (200, b"GET / 0")
        assert there.early == 4


async def test_close_is_honoured(parser: str) -> None:
    closing = GET[:-2] + b"CONNECTION: Close\r\n\r\n"
    async with place(parser) as there:
        there.close()
        async with there.connected() as wire:
            status, fields, body = await wire.say(closing)
            assert (status, fields["connection"]) == (503, "close")
            assert b"temporary-reduced-capacity" in body
            assert await wire.end() == b""
        async with there.connected() as wire:
            assert (await wire.say(GET[:-2] + b"Connection: keep-alive\r\n\r\n"))[0] == 503
            both = GET[:-2] + b"Connection: close\r\nConnection: keep-alive\r\n\r\n"
            assert (await wire.say(both))[0] == 503
            assert await wire.end() == b""
        assert there.early == 3


async def test_a_server_that_always_closes(parser: str) -> None:
    async with place(parser, headers=[("Connection", "close")]) as there:
        there.close()
        async with there.connected() as wire:
            status, fields, _ = await wire.say(GET)
            assert (status, fields["connection"]) == (503, "close")
            assert await wire.end() == b""


async def test_exempt_paths(parser: str) -> None:
    async with place(parser, exempt={"/health", "/gr\u00fcn", "/metrics/*"}) as there:
        there.close()
        told = {
            path: (await there.say(GET.replace(b"/ ", path + b" ")))[0]
            for path in (
                *(b"/health", b"/health?a=/", b"/gr%C3%BCn", b"/metrics", b"/metrics/a?b"),
                *(b"/healthy", b"/a?/health", b"/metricsx"),
            )
        }
        assert list(told.values()) == [200] * 5 + [503] * 3, told


async def test_exempt_paths_are_the_applications(parser: str) -> None:
    async with place(parser, exempt=["/api/health"], root_path="/api") as there:
        there.close()
        assert (await there.say(GET.replace(b"/ ", b"/health ")))[::2] == (
            200,
            b"GET /api/health 0",
        )
        assert (await there.say(GET.replace(b"/ ", b"/api/health ")))[0] == 503


async def test_a_websocket_passes(parser: str) -> None:
    async with place(parser) as there:
        there.close()
        async with websockets.connect(f"ws://{there.address}/") as socket:
            assert await socket.recv() == "hello"
        assert there.early == 0


async def test_a_dry_run_refuses_nobody(parser: str) -> None:
    async with place(parser, dry_run=True) as there:
        there.close()
        assert (await there.say(GET))[0] == 200
        assert there.controller.gate.would_refuse == 0  # the middleware counts them


async def test_a_controller_that_does_not_run_here_refuses_nobody(parser: str) -> None:
    controller = LoadController(clock=FakeClock())
    async with serving(app, http=overload_protocol(controller, http=parser)) as address:  # type: ignore[arg-type]
        there = Place(address, controller)
        there.close()
        assert (await there.say(GET))[0] == 200
        async with controller:
            there.close()
            assert (await there.say(GET))[0] == 503
        there.close()
        assert (await there.say(GET))[0] == 200


async def test_places_that_are_taken(parser: str) -> None:
    clock = FakeClock()
    controller = LoadController(clock=clock)
    limiter = Limiter("100/s", load=controller, clock=clock)
    asked, may = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            asked.set()
            await may.wait()
        await app(scope, receive, send)

    protected = RateLimitMiddleware(slow, limiter=limiter)
    protocol: Any = overload_protocol(controller, http=parser)  # type: ignore[arg-type]
    async with serving(protected, http=protocol) as address:
        there = Place(address, controller)
        controller.gate.set_limits(1, inf, inf)
        async with there.connected() as wire:
            wire.writer.write(GET)
            await asked.wait()
            await there.has_read()
            may.set()
            assert (await wire.answer())[0] == 200
            assert (await wire.say(GET))[0] == 200
        assert controller.gate.refused == controller.gate.capped == there.early == 1
        assert limiter.statistics().admitted == 2


async def test_a_name_is_enough(parser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with several workers, which import the class."""
    async with place(parser) as there:
        monkeypatch.setattr(sys.modules[__name__], "named", there.protocol, raising=False)
        async with serving(app, http=f"{__name__}:named") as address:
            there.close()
            assert (await Place(address, there.controller).say(GET))[0] == 503


def test_on_uvloop(parser: str) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def ask() -> None:
        async with place(parser) as there, there.connected() as wire:
            assert (await wire.say(GET))[0] == 200
            there.close()
            assert (await wire.say(GET))[0] == 503
            assert (await wire.say(PASSES["a body"]))[0] == 200
            closing = GET[:-2] + b"Connection: close\r\n\r\n"
            assert (await wire.say(closing))[0] == 503
            assert await wire.end() == b""

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ask())


def test_arguments() -> None:
    controller = LoadController()
    with pytest.raises(TypeError, match="controller must be a LoadController, not None"):
        overload_protocol(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="exempt must be paths, not '/health'"):
        overload_protocol(controller, exempt="/health")
    with pytest.raises(ValueError, match='http must be "auto", "h11" or "httptools"'):
        overload_protocol(controller, http="zttp")  # type: ignore[arg-type]


def test_auto_is_what_uvicorn_takes() -> None:
    mine = overload_protocol(LoadController())
    assert issubclass(mine, AutoHTTPProtocol)


def test_without_httptools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn.protocols.http.httptools_impl", None)
    assert issubclass(overload_protocol(LoadController()), H11Protocol)
    with pytest.raises(ImportError):
        overload_protocol(LoadController(), http="httptools")


# By hand: one connection on a loop and a transport that only note what is asked of them.


class Handle:
    """Of a timer, or of a task that does not run."""

    def __init__(self, cancel: Callable[[], object]) -> None:
        self.cancel = cancel

    def add_done_callback(self, callback: Callable[..., object]) -> None: ...


class Loop:
    """An event loop whose time and iterations go on when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], object]]] = []
        self.soon: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.tasks = 0

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], object]) -> Any:
        timer = (self.now + delay, callback)
        self.timers.append(timer)
        return Handle(lambda: self.timers.remove(timer) if timer in self.timers else None)

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        self.soon.append((callback, args))

    def create_task(self, run: Any, **_: object) -> Any:
        run.close()
        self.tasks += 1
        return Handle(lambda: None)

    def iterate(self) -> None:
        ready, self.soon = self.soon, []
        for callback, args in ready:
            callback(*args)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer[0] <= self.now]
        for timer in due:
            self.timers.remove(timer)
            timer[1]()


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closing = False

    def write(self, data: Any) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Hand:
    """A controller whose gate stands at such a loop, and its server."""

    def __init__(self, parser: Any) -> None:
        self.loop = cast(Any, Loop())
        self.controller = LoadController(clock=FakeClock())
        self.gate = self.controller.gate
        self.gate.open(self.loop)
        self.gate.set_limits(0, inf, inf)
        self.protocol: Any = overload_protocol(self.controller, http=parser)
        self.config = uvicorn.Config(app, log_level="error", timeout_keep_alive=5)
        self.state = ServerState()

    def connect(self) -> tuple[Any, Transport]:
        protocol = self.protocol(
            config=self.config, server_state=self.state, app_state={}, _loop=self.loop
        )
        transport = Transport()
        protocol.connection_made(transport)
        return protocol, transport


@pytest.fixture
def hand(parser: str) -> Hand:
    return Hand(parser)


def test_a_refused_connection_stays_for_the_keep_alive_time(hand: Hand) -> None:
    protocol, transport = hand.connect()
    for _ in range(10):
        hand.loop.advance(3)
        protocol.data_received(GET)
        assert len(hand.loop.timers) == 1, "one timer, however many are refused"
    hand.loop.advance(4.99)
    assert not transport.closing
    hand.loop.advance(0.02)
    assert transport.closing
    assert len(transport.written) == hand.state.total_requests == 10


def test_what_is_let_through_stops_the_keep_alive_time(hand: Hand) -> None:
    protocol, transport = hand.connect()
    protocol.data_received(GET)
    protocol.data_received(GET[:10])
    hand.loop.advance(100)
    assert not transport.closing


def test_the_time_after_an_answer_is_uvicorns(hand: Hand) -> None:
    protocol, transport = hand.connect()
    protocol.on_response_complete()
    hand.loop.advance(4)
    protocol.data_received(GET)
    hand.loop.advance(4)
    assert not transport.closing
    protocol.on_response_complete()
    hand.loop.advance(5)
    assert transport.closing


def test_a_connection_that_ends_meanwhile(hand: Hand) -> None:
    protocol, transport = hand.connect()
    protocol.data_received(GET)
    hand.loop.advance(3)
    protocol.data_received(GET)
    transport.close()
    hand.loop.advance(3)
    assert hand.loop.timers == []
    protocol.connection_lost(None)


def test_who_does_not_read_its_answers_is_left_to_the_flow_control(hand: Hand) -> None:
    protocol, transport = hand.connect()
    protocol.pause_writing()
    protocol.data_received(GET)
    assert (transport.written, hand.loop.tasks, hand.gate.early) == ([], 1, 0)


def test_nothing_is_written_to_a_closing_connection(hand: Hand) -> None:
    protocol, transport = hand.connect()
    transport.close()
    protocol.data_received(GET)
    assert (transport.written, hand.gate.early) == ([], 0)


def test_after_an_upgrade_it_is_no_http_any_more() -> None:
    pytest.importorskip("httptools")
    hand = Hand("httptools")
    protocol, transport = hand.connect()
    protocol.data_received(PASSES["an upgrade"])
    protocol.cycle.response_complete = True
    protocol.data_received(GET)
    assert (transport.written, hand.gate.early) == ([], 0)


def test_no_more_are_let_in_than_there_are_places(hand: Hand) -> None:
    """What comes in one iteration of the loop is not in flight before the next."""
    hand.controller._state = replace(hand.controller.state, cost=0.001)
    hand.gate.set_limits(3, inf, inf)
    for _ in range(2):
        for _ in range(5):
            hand.connect()[0].data_received(GET)
        hand.loop.iterate()
    assert (hand.loop.tasks, hand.gate.early, hand.gate.capped) == (6, 4, 4)


def test_places_are_not_kept_before_the_cost_is_known(hand: Hand) -> None:
    hand.gate.set_limits(3, inf, inf)
    for _ in range(5):
        hand.connect()[0].data_received(GET)
    assert (hand.loop.tasks, hand.gate.early) == (5, 0)


def test_promises_end_with_their_loop(hand: Hand) -> None:
    hand.controller._state = replace(hand.controller.state, cost=0.001)
    hand.gate.set_limits(1, inf, inf)
    hand.connect()[0].data_received(GET)
    hand.loop = another = cast(Any, Loop())  # the first has ended before its next iteration
    hand.gate.open(another)
    hand.gate.set_limits(1, inf, inf)
    hand.connect()[0].data_received(GET)
    assert hand.gate.early == 0


def test_answers_are_made_once_for_the_fields_of_the_server(hand: Hand) -> None:
    protocol, transport = hand.connect()
    for fields in ([(b"date", b"1")], [(b"date", b"2")]):
        hand.state.default_headers = fields
        for _ in range(50):
            protocol.data_received(GET)
    dates = [re.findall(rb"date: (\d)", answer) for answer in transport.written]
    assert dates == [[b"1"]] * 50 + [[b"2"]] * 50
    assert len({id(answer) for answer in transport.written}) == 4  # 1 or 2 seconds
