"""What can stand before an application under overload, each as a thin ASGI middleware.

All but aiolimit's own refuse by the same few lines, so that no protection wins by a cheaper "no".
Each makes a `Protection` from the application, what the server can do in requests per second, and
how long one request takes by itself. Only those that are tuned by hand use the last two.
"""

import asyncio
import importlib
import math
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from aiolimit import Limiter, Rate

__all__ = ["ARMS", "REFUSE_ALL", "STATE", "Application", "Protection", "missing", "protect", "say"]

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

STATE: Final = "/-/state"  # outside the protection: what the server knows of itself
REFUSE_ALL: Final = "refuse all"  # no arm: it measures what a refusal costs
_NEVER_REACHED: Final = "1000000/s"  # the configured limit where load alone is to decide
_BURST: Final = 0.05  # seconds of the fixed rate that may come at once
_BUSY: Final = 85.0  # per cent
_SAMPLE: Final = 0.25  # seconds
_WAIT: Final = 0.2  # seconds, of callers who may wait

_REFUSED: Final = b'{"error": "overloaded"}'
_REFUSED_HEADERS: Final = [
    (b"content-type", b"application/json"),
    (b"content-length", b"%d" % len(_REFUSED)),
    (b"retry-after", b"1"),
]


@dataclass(frozen=True, slots=True)
class Protection:
    """An application with something before it.

    protocol: the class of uvicorn's that speaks HTTP, if the protection sits there.
    facts: what the protection tells of itself after a run.
    """

    app: Application
    protocol: type[asyncio.Protocol] | None = None
    facts: Callable[[], dict[str, Any]] = dict


async def say(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """Answer a request."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _refuse(send: Send) -> None:
    await say(send, 503, _REFUSED_HEADERS, _REFUSED)


def _nothing(app: Application, _capacity: float, _latency: float) -> Protection:
    return Protection(app)


def _refuse_all(app: Application, _capacity: float, _latency: float) -> Protection:
    return Protection(_asking(app, lambda: False))


def _fixed_rate(app: Application, capacity: float, _latency: float) -> Protection:
    """A limit of exactly what the server can do, as one would set it after a load test."""
    limiter = Limiter(Rate(capacity), burst=max(1, round(capacity * _BURST)))
    return Protection(_asking(app, lambda: limiter.try_acquire("")))


def _busy(app: Application, _capacity: float, _latency: float) -> Protection:
    """Refuse everybody while the process used more than 85 % of a core in the last sample."""
    # By name: its types are in a package that the type checker may not have.
    process: Any = importlib.import_module("psutil").Process()
    percent = 0.0

    async def sample() -> None:
        nonlocal percent
        process.cpu_percent(None)  # the first has nothing to compare with
        while True:
            await asyncio.sleep(_SAMPLE)
            percent = process.cpu_percent(None)

    async def protected(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            task = asyncio.create_task(sample())
            try:
                await app(scope, receive, send)
            finally:
                task.cancel()
        elif percent > _BUSY:
            await _refuse(send)
        else:
            await app(scope, receive, send)

    return Protection(protected, facts=lambda: {"percent": percent})


def _hand_tuned(app: Application, capacity: float, latency: float) -> Protection:
    """At most so many at once: what keeps the server busy, twice. Needs a load test, and lasts
    until a request costs something else."""
    most = max(1, math.ceil(2 * capacity * latency))
    flying = 0

    async def protected(scope: Message, receive: Receive, send: Send) -> None:
        nonlocal flying
        if scope["type"] != "http":
            await app(scope, receive, send)
        elif flying >= most:
            await _refuse(send)
        else:
            flying += 1
            try:
                await app(scope, receive, send)
            finally:
                flying -= 1

    return Protection(protected, facts=lambda: {"most": most})


def _aiolimit(app: Application, _capacity: float, _latency: float) -> Protection:
    return _in_flight(app, max_wait=0)


def _waiting(app: Application, _capacity: float, _latency: float) -> Protection:
    return _in_flight(app, max_wait=_WAIT)


def _in_flight(app: Application, max_wait: float) -> Protection:
    """aiolimit as its documentation says: the middleware holds a permit for each request."""
    _, limiter, facts = _controlled()
    return Protection(_holding(app, limiter, max_wait), facts=facts)


def _holding(app: Application, limiter: Limiter, max_wait: float) -> Application:
    from aiolimit.http.asgi import RateLimitMiddleware

    return RateLimitMiddleware(app, limiter=limiter, key=lambda _scope: "", max_wait=max_wait)


def _acquire_only(app: Application, _capacity: float, _latency: float) -> Protection:
    """aiolimit where nobody tells when a request ends."""
    controller, limiter, facts = _controlled()
    overloaded: type[Exception] = _aiolimit_module().Overloaded

    async def protected(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            async with controller:
                await app(scope, receive, send)
            return
        try:
            await limiter.acquire(max_wait=0)
        except overloaded:
            await _refuse(send)
            return
        await app(scope, receive, send)

    return Protection(protected, facts=facts)


def _before_parsing(app: Application, _capacity: float, _latency: float) -> Protection:
    """The middleware, and before it the same controller inside uvicorn's protocol."""
    from aiolimit.http.uvicorn import overload_protocol

    controller, limiter, facts = _controlled()
    protocol = overload_protocol(controller, exempt={STATE})

    def all_facts() -> dict[str, Any]:
        return {**facts(), "refused": controller.gate.refused, "early": controller.gate.early}

    return Protection(_holding(app, limiter, max_wait=0), protocol, all_facts)


def _controlled() -> tuple[Any, Limiter, Callable[[], dict[str, Any]]]:
    """A limiter whose controller alone decides, and what the two tell of themselves."""
    controller: Any = _aiolimit_module().LoadController()
    make: Any = Limiter
    limiter: Limiter = make(_NEVER_REACHED, load=controller)

    def facts() -> dict[str, Any]:
        state = getattr(controller, "state", None)
        told = state() if callable(state) else state
        return {"explain": str(limiter.explain("")), "state": repr(told)}

    return controller, limiter, facts


def _aiolimit_module() -> Any:
    # By name, so that the benchmark also runs on a version of aiolimit without the controller.
    return importlib.import_module("aiolimit")


_BUILDERS: Final[dict[str, Callable[[Application, float, float], Protection]]] = {
    "nothing": _nothing,
    "fixed rate C": _fixed_rate,
    "process CPU > 85 %": _busy,
    "hand-tuned cap": _hand_tuned,
    "aiolimit": _aiolimit,
    "aiolimit, acquire only": _acquire_only,
    "aiolimit, waiting callers": _waiting,
    "aiolimit, before parsing": _before_parsing,
    REFUSE_ALL: _refuse_all,
}
ARMS: Final = tuple(name for name in _BUILDERS if name != REFUSE_ALL)


def missing(arm: str) -> str:
    """What this version of aiolimit lacks for an arm, or nothing."""
    if not arm.startswith("aiolimit"):
        return ""
    if not hasattr(_aiolimit_module(), "LoadController"):
        return "aiolimit.LoadController"
    return ""


def protect(arm: str, app: Application, *, capacity: float, latency: float) -> Protection:
    """Put an arm before an application."""
    return _BUILDERS[arm](app, capacity, latency)


def _asking(app: Application, may: Callable[[], bool]) -> Application:
    async def protected(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not may():
            await _refuse(send)
        else:
            await app(scope, receive, send)

    return protected
