"""What a key has left of one rate."""

from dataclasses import dataclass

from aiolimit.rate import Limit, Rate

__all__ = ["Quota"]


@dataclass(frozen=True, slots=True)
class Quota:
    """What a key has left of one rate.

    rate: the rate, as it was configured, or with the limit that the call named.
    limit: what its limit is now, as cost in `rate.per` seconds; `UNLIMITED` where the call named
        that.
    remaining: cost that would pass now.
    retry_after: seconds until a call would pass; 0 if it would now, None if it never would.
    reset_after: seconds until the whole limit is there again.
    more_after: seconds until there is more than `remaining`; 0 if there is all of it.
    """

    rate: Rate
    limit: Limit
    remaining: float
    retry_after: float | None
    reset_after: float
    more_after: float = 0.0
