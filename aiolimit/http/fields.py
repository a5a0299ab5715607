"""What a refusal says in HTTP: pure functions from a refusal to fields and bodies.

The dialects of the RateLimit fields, for writing and for reading, belong here too.
"""

import json
from math import ceil

from aiolimit.errors import RateLimited

__all__ = ["refusal_body", "refusal_fields", "retry_after"]

Headers = list[tuple[bytes, bytes]]


def retry_after(seconds: float) -> int:
    """The value of `Retry-After` (RFC 9110, 10.2.3): whole seconds, rounded up, at least 1."""
    return max(1, ceil(seconds))


def refusal_fields(refused: RateLimited) -> Headers:
    """The fields of a refusal. There is no `Retry-After` where the call can never pass."""
    if refused.retry_after is None:
        return []
    return [(b"retry-after", str(retry_after(refused.retry_after)).encode())]


def refusal_body(refused: RateLimited) -> bytes:
    """The JSON body of a refusal: the limit, its period in seconds, and how long to wait.

    It names no key: what identifies one caller is nothing to tell another.
    """
    after = refused.retry_after
    return json.dumps(
        {
            "error": "rate limit exceeded",
            "limit": refused.limit,
            "per": refused.rate.per,
            "retry_after": None if after is None else retry_after(after),
        }
    ).encode()
