"""The breaker: after a few failures in a row nobody asks any more, until one try has succeeded.

It takes the time, in seconds, and a number between 0 and 1 for the jitter; it reads no clock.
"""

from typing import Final

__all__ = ["Breaker"]

_LATER: Final = 0.25  # at most this share is added to a pause: processes do not come together


class Breaker:
    """Whether an engine is asked.

    failures: how many in a row open it.
    first, longest: seconds to the first try, doubled with each try that fails up to the longest.
    """

    __slots__ = (
        "_failures",
        "_first",
        "_longest",
        "_pause",
        "failed_in_a_row",
        "is_open",
        "retry_at",
    )

    def __init__(self, failures: int = 3, first: float = 0.5, longest: float = 10.0) -> None:
        self._failures = failures
        self._first = first
        self._longest = longest
        self.failed_in_a_row = 0
        self._pause = first
        self.is_open = False
        self.retry_at = 0.0  # while it is open: when one call tries

    def failed(self, now: float, random: float) -> bool:
        """Note a failure; returns whether it has opened because of it."""
        self.failed_in_a_row += 1
        was_open = self.is_open
        if was_open:
            self._pause = min(2 * self._pause, self._longest)
        elif self.failed_in_a_row >= self._failures:
            self.is_open = True
            self._pause = self._first
        if self.is_open:
            self.retry_at = now + self._pause * (1 + _LATER * random)
        return self.is_open and not was_open

    def succeeded(self) -> bool:
        """Note a success; returns whether it has closed because of it."""
        was_open, self.is_open = self.is_open, False
        self.failed_in_a_row = 0
        return was_open
