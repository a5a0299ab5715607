"""The types and names of ASGI, as its specification has them."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

__all__ = ["DENIAL", "TRY_AGAIN_LATER", "App", "Message", "Receive", "Scope", "Send"]

DENIAL: Final = "websocket.http.response"  # the extension to answer a handshake over HTTP
TRY_AGAIN_LATER: Final = 1013  # the close code of a websocket that is refused for a while (IANA)

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
#: Frameworks have types of their own for the three, which are these by another name.
App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
