"""ASGI lifespan: have a load controller run for as long as the application does."""

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from aiolimit.load.controller import LoadController

__all__ = ["run_with"]

_log = logging.getLogger("aiolimit.http")

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


async def run_with(
    controller: LoadController,
    app: Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]],
    scope: MutableMapping[str, Any],
    receive: Receive,
    send: Send,
) -> None:
    """Run the application's lifespan inside the controller's.

    An application that knows no lifespan ends or raises before it has said anything; the
    controller runs all the same, so this answers the server in its place.
    """
    has_read = has_spoken = False

    async def read() -> Message:
        nonlocal has_read
        has_read = True
        return await receive()

    async def speak(message: Message) -> None:
        nonlocal has_spoken
        has_spoken = True
        await send(message)

    async with controller:
        try:
            await app(scope, read, speak)
        except Exception:
            if has_spoken:
                raise
            # As servers do (uvicorn: "appears unsupported"), who would hear of it in our place.
            _log.info("the application raised at ASGI lifespan, so it has none", exc_info=True)
        if has_spoken:
            return
        if not has_read:
            await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
