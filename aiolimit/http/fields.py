"""What a refusal says in HTTP: pure functions from a refusal to fields and bodies.

The dialects of the RateLimit fields, for writing and for reading, belong here too.
"""

import json
from math import ceil

from aiolimit.errors import RateLimited

__all__ = ["refusal_body", "refusal_headers", "retry_after"]


def retry_after(seconds: float) -> int:
    """The value of `Retry-After` (RFC 9110, 10.2.3): whole seconds, rounded up, at least 1."""
    return max(1, ceil(seconds))


def refusal_headers(refused: RateLimited) -> dict[str, str]:
    """The headers of a refusal. There is no `Retry-After` where the call can never pass."""
    headers = {"content-type": "application/json"}
    if refused.retry_after is not None:
        headers["retry-after"] = str(retry_after(refused.retry_after))
    return headers


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
