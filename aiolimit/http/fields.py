"""What a refusal says in HTTP: pure functions from a refusal to fields and bodies.

The dialects of the RateLimit fields, for writing and for reading, belong here too.
"""

import json
from math import ceil

from aiolimit.errors import Overloaded, RateLimited

__all__ = [
    "overload_body",
    "overload_headers",
    "refusal_body",
    "refusal_headers",
    "retry_after",
    "status",
]


def retry_after(seconds: float) -> int:
    """The value of `Retry-After` (RFC 9110, 10.2.3): whole seconds, rounded up, at least 1."""
    return max(1, ceil(seconds))


def status(refused: RateLimited) -> int:
    """429, as the caller asked too often; 503, as this server is overloaded."""
    return 503 if isinstance(refused, Overloaded) else 429


def refusal_headers(refused: RateLimited) -> dict[str, str]:
    """The headers of a refusal. There is no `Retry-After` where the call can never pass."""
    if isinstance(refused, Overloaded):
        return overload_headers(retry_after(refused.retry_after))
    headers = {"content-type": "application/json"}
    if refused.retry_after is not None:
        headers["retry-after"] = str(retry_after(refused.retry_after))
    return headers


def refusal_body(refused: RateLimited) -> bytes:
    """The JSON body of a refusal: the limit, its period in seconds, and how long to wait.

    It names no key: what identifies one caller is nothing to tell another. An overloaded server
    names no limit either, as the caller's has nothing to do with it.
    """
    after = refused.retry_after
    if isinstance(refused, Overloaded):
        return overload_body(retry_after(refused.retry_after))
    return json.dumps(
        {
            "error": "rate limit exceeded",
            "limit": refused.limit,
            "per": refused.rate.per,
            "retry_after": None if after is None else retry_after(after),
        }
    ).encode()


def overload_headers(seconds: int) -> dict[str, str]:
    """The headers of an overloaded server, which hopes for better times in so many seconds."""
    return {"content-type": "application/json", "retry-after": str(seconds)}


def overload_body(seconds: int) -> bytes:
    """The JSON body that goes with them."""
    return json.dumps({"error": "overloaded", "retry_after": seconds}).encode()
