"""Who calls: the address of the other end of the connection, as the server tells it."""

import logging
from collections.abc import Mapping
from typing import Any

__all__ = ["NO_PEER", "peer"]

_logger = logging.getLogger("aiolimit")

#: The key of all who come without an address, as over a unix socket: they share one.
NO_PEER = "no peer"

_told: set[str] = set()


def peer(scope: Mapping[str, Any]) -> str:
    """The address of the socket's other end, without its port. Headers are not looked at.

    Where the server knows none (a unix socket, some test clients) all callers share the key
    `NO_PEER`, and the log says so once: give a `key` function there.
    """
    client = scope.get("client")
    if client:
        return str(client[0])
    if not _told:
        _told.add(NO_PEER)
        _logger.warning(
            "requests come without a client address and share one limit: "
            "give RateLimitMiddleware a key function"
        )
    return NO_PEER
