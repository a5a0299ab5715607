"""ASGI lifespan: have a load controller run for as long as the application does."""

import logging
from typing import Final

from aiolimit.http.asgi_types import App, Message, Receive, Scope, Send
from aiolimit.load.controller import LoadController

__all__ = ["run_with"]

_log = logging.getLogger("aiolimit.http")

_STARTUP: Final = "lifespan.startup"
_SHUTDOWN: Final = "lifespan.shutdown"
_FAILED: Final = {f"{_STARTUP}.failed", f"{_SHUTDOWN}.failed"}


async def run_with(
    controller: LoadController,
    app: App,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Run the application's lifespan inside the controller's.

    An application that knows no lifespan ends or raises before it has said anything; the
    controller runs all the same, so this answers the server in its place.
    """
    read: set[str] = set()
    said: set[str] = set()

    async def listen() -> Message:
        message = await receive()
        read.add(message["type"])
        return message

    async def speak(message: Message) -> None:
        # What is no answer to lifespan comes from one that takes it for a request.
        if message["type"].startswith("lifespan."):
            await send(message)
            said.add(message["type"])

    async with controller:
        try:
            await app(scope, listen, speak)
        except Exception:
            if _SHUTDOWN in read or said & _FAILED:
                raise
            # As servers do (uvicorn: "appears unsupported"), who would hear of it in our place.
            if said:
                _log.exception("the application's lifespan ended with an error; it is served on")
            else:
                _log.info("the application raised at ASGI lifespan, so it has none", exc_info=True)
        # Whatever it has left out of the conversation, the server is still to have.
        if said & _FAILED:
            return
        if _STARTUP not in read:
            await receive()
        if f"{_STARTUP}.complete" not in said:
            await send({"type": f"{_STARTUP}.complete"})
        if _SHUTDOWN not in read:
            await receive()
        if f"{_SHUTDOWN}.complete" not in said:
            await send({"type": f"{_SHUTDOWN}.complete"})
