"""Refuse what an overloaded process cannot do before the request is parsed, in uvicorn.

```python
import uvicorn
from aiolimit import Limiter, LoadController
from aiolimit.http.asgi import RateLimitMiddleware
from aiolimit.http.uvicorn import overload_protocol

controller = LoadController()
app = RateLimitMiddleware(app, limiter=Limiter("100/s", load=controller))
config = uvicorn.Config(app, http=overload_protocol(controller, exempt={"/health"}))
```

It stands before the middleware, not in its place: the middleware runs the controller, holds the
permits from which the controller learns what a request costs, and decides on all that comes past
here. What a refusal costs by then is mostly the reading of the request and a task for it, and the
cheaper a request is the more of the process goes into saying no. Here it is two system calls and a
few microseconds.

1. Refused is only what is plainly one whole request without a body that begins where the last one
   ended. Whatever is in doubt (a body, an upgrade, two requests at once, half of one, a line that
   looks odd) goes on to the parser as it came.
2. The answer is the middleware's, byte for byte, and the connection stays open as long as it would
   have.
3. The tasks of all that is read in one iteration of the event loop run in the next. Until they
   have, those that were let through have places promised to them, so that no more are let in than
   there are places.
4. A request that is let through costs a microsecond more; the application sees no difference.

What is refused here is in no access log and no limiter's statistics; it counts in the controller,
as `controller.refused_early`, and uses up no quota. Nobody waits here: with the middleware's
`max_wait`, those who come while the process is overloaded are refused all the same.
"""

import asyncio
import re
from collections.abc import Callable, Collection
from math import inf
from typing import Any, ClassVar, Final, Literal

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

from aiolimit.http.fields import overload_body, overload_headers, retry_after
from aiolimit.http.paths import Paths
from aiolimit.load.controller import LoadController
from aiolimit.load.gate import Obstacle

__all__ = ["overload_protocol"]

_LONGEST: Final = 8192  # bytes of a head that is looked at here

# The path is as it is on the wire, without what follows a question mark.
_REQUEST: Final = re.compile(
    rb"(GET|HEAD|DELETE|OPTIONS) (/[!\"$->@-~]*+)(?:\?[!\"$-~]*+)? HTTP/1\.1\r\n"
)
# In lower case; each line as the grammar has it (RFC 9112), so that nothing reads as one request
# here, and as another or as two in a proxy. Captured is only that the client will close.
_FIELDS: Final = re.compile(
    rb"(?:(?!connection:|content-length:|transfer-encoding:|expect:|upgrade:)"
    rb"[!#$%&'*+.^_`|~0-9a-z-]++:[^\r\n\x00]*+\r\n"
    rb"|connection:[ \t]*+(?:keep-alive|(close))[ \t]*+\r\n)++\r\n"
)
_HOST: Final = b"\nhost:"


def overload_protocol(
    controller: LoadController,
    *,
    exempt: Collection[str] = (),
    http: Literal["auto", "h11", "httptools"] = "auto",
) -> type[asyncio.Protocol]:
    """A class for uvicorn's `http`, which refuses with 503 while the process is overloaded.

    controller: the one of the application's limiters. Where it does not run, or runs dry, all
        requests go on to the application.
    exempt: paths that are never refused, as the application sees them, with uvicorn's `root_path`:
        "/health", or all below one, "/metrics/*".
    http: what parses the requests that go on; "auto" is httptools where that is installed.

    With more than one worker, or `reload`, each process makes the class for itself, and uvicorn has
    to be told its name: `uvicorn.run("main:app", http="main:protocol", workers=4)`, or on the
    command line `--http main:protocol` (both from uvicorn 0.36 on).

    Raises `TypeError` and `ValueError` for what is none of these, and `ImportError` where httptools
    is asked for by name and not installed.
    """
    if not isinstance(controller, LoadController):
        raise TypeError(f"controller must be a LoadController, not {controller!r}")
    if isinstance(exempt, str) or not all(isinstance(path, str) for path in exempt):
        raise TypeError(f"exempt must be paths, not {exempt!r}")
    if http not in ("auto", "h11", "httptools"):
        raise ValueError(f'http must be "auto", "h11" or "httptools", not {http!r}')
    base = _on_h11() if http == "h11" else _on_httptools(or_h11=http == "auto")
    door = _Door(controller, Paths(exempt))
    return type("OverloadProtocol", (base,), {"_door": door, "__doc__": base.__doc__})


class _Door:
    """What the connections of one server share: the gate, and the answers, made once."""

    __slots__ = ("_answers", "_controller", "_fields", "_gate", "_loop", "_promised", "exempt")

    def __init__(self, controller: LoadController, exempt: Paths) -> None:
        self.exempt = exempt
        self._controller = controller
        self._gate = controller.gate
        self._loop: asyncio.AbstractEventLoop | None = None
        self._promised = 0  # places, to those who have come in this iteration of the loop
        self._fields: list[tuple[bytes, bytes]] | None = None
        self._answers: dict[tuple[int, bool, bool], tuple[bytes, bool]] = {}

    def obstacle(self, loop: asyncio.AbstractEventLoop) -> Obstacle | None:
        """Why a request that begins now cannot be taken in; if it can, it has a place."""
        gate = self._gate
        if gate.dry_run or not gate.watches(loop):
            return None
        if self._loop is not loop:
            self._loop, self._promised = loop, 0
        promised = self._promised
        now = self._controller.time()
        cohort = gate.cohort
        if now >= cohort.until or cohort.held + promised >= cohort.most:
            found = gate.obstacle(now, holds=True)
            if found is not None:
                return found
            # Before the cost of a request is known, they may be so cheap that no place is kept.
            if gate.in_flight + promised >= gate.cap and self._controller.state.cost is not None:
                return "in_flight"
        if not promised:
            loop.call_soon(self._keep)
        self._promised = promised + 1
        return None

    def _keep(self) -> None:
        """The next iteration: their tasks come before anything more is read."""
        self._promised = 0

    def refuse(
        self, obstacle: Obstacle, fields: list[tuple[bytes, bytes]], *, head: bool, close: bool
    ) -> tuple[bytes, bool]:
        """Count a refusal; returns the answer and whether it closes the connection.

        fields: the server's own, a new list whenever they change, which `Date` does every second.
        head: without the body. close: as the client has asked to.
        """
        gate = self._gate
        gate.refuse(obstacle)
        gate.early += 1
        if fields is not self._fields:
            self._fields = fields
            self._answers.clear()
        which = (retry_after(self._controller.retry_after()), head, close)
        answer = self._answers.get(which)
        if answer is None:
            answer = self._answers[which] = _answer(*which, fields)
        return answer


def _answer(
    seconds: int, head: bool, close: bool, fields: list[tuple[bytes, bytes]]
) -> tuple[bytes, bool]:
    body = overload_body(seconds)
    ours = [(name.encode(), value.encode()) for name, value in overload_headers(seconds).items()]
    lines = [*fields, *ours, (b"content-length", b"%d" % len(body))]
    closes = any(name.lower() == b"connection" and b"close" in value for name, value in fields)
    if close and not closes:
        lines.append((b"connection", b"close"))
    written = b"".join(b"%s: %s\r\n" % line for line in lines)
    start = b"HTTP/1.1 503 Service Unavailable\r\n%s\r\n" % written
    return start if head else start + body, close or closes


def _simple(data: bytes) -> tuple[bytes, bytes, bool] | None:
    """The method, the path and whether to close, of one whole request that is plain; else None."""
    request = _REQUEST.match(data) if len(data) <= _LONGEST else None
    if request is None:
        return None
    lower = data.lower()
    fields = _FIELDS.fullmatch(lower, request.end())
    if fields is None or _HOST not in lower:
        return None
    return request[1], request[2], fields[1] is not None


class _Early(asyncio.Protocol):
    """uvicorn's protocol, which may refuse a request for overload before it is parsed."""

    _door: ClassVar[_Door]
    _refused_at = -inf  # the latest, in the loop's time

    # What is uvicorn's, and the same for all parsers.
    cycle: Any
    flow: FlowControl
    loop: asyncio.AbstractEventLoop
    root_path: str
    server_state: ServerState
    timeout_keep_alive: int
    timeout_keep_alive_handler: Callable[[], None]
    timeout_keep_alive_task: asyncio.TimerHandle | None
    transport: asyncio.Transport

    def _is_between(self) -> bool:
        """Whether all so far was read, and answered: what comes now begins a request."""
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        """Refuse what can be refused by now; hand over the rest."""
        if self._is_between():
            obstacle = self._door.obstacle(self.loop)
            if obstacle is not None and self._refuse(data, obstacle):
                return
        super().data_received(data)

    def _refuse(self, data: bytes, obstacle: Obstacle) -> bool:
        request = _simple(data)
        # Who does not read the answers gets no more of them before it does: see `flow.drain`.
        if request is None or self.flow.write_paused or self.transport.is_closing():
            return False
        method, path, close = request
        door = self._door
        if door.exempt and (
            b"%" in path or self.root_path + path.decode(errors="replace") in door.exempt
        ):
            return False  # what is encoded in a path, the middleware knows
        answer, closes = door.refuse(
            obstacle, self.server_state.default_headers, head=method == b"HEAD", close=close
        )
        self.transport.write(answer)
        self.server_state.total_requests += 1
        if closes:
            self.transport.close()
            return True
        # Not a new timer for each: the one there is sets itself anew.
        self._refused_at = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._close_later(self.timeout_keep_alive)
        return True

    def _close_later(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )

    def _stays(self) -> bool:
        """At the end of the keep-alive time: go on where it was refused something since."""
        left = self._refused_at + self.timeout_keep_alive - self.loop.time()
        if left <= 0 or self.transport.is_closing():
            return False
        self._close_later(left)
        return True


def _on_h11() -> type[_Early]:
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class OnH11(_Early, H11Protocol):
        __doc__ = _Early.__doc__

        def _is_between(self) -> bool:
            # It is idle only once both sides are done with the last one.
            return self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]

        def timeout_keep_alive_handler(self) -> None:
            if not self._stays():
                super().timeout_keep_alive_handler()

    return OnH11


def _on_httptools(*, or_h11: bool) -> type[_Early]:
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:
        if or_h11:
            return _on_h11()
        raise

    class OnHttptools(_Early, HttpToolsProtocol):
        __doc__ = _Early.__doc__
        _is_read = True

        def on_message_begin(self) -> None:
            self._is_read = False
            super().on_message_begin()

        def on_message_complete(self) -> None:
            self._is_read = not self.parser.should_upgrade()  # after that it is no HTTP any more
            super().on_message_complete()

        def _is_between(self) -> bool:
            return self._is_read and (self.cycle is None or self.cycle.response_complete)

        def timeout_keep_alive_handler(self) -> None:
            if not self._stays():
                super().timeout_keep_alive_handler()

    return OnHttptools
