"""A rate: so much cost in so many seconds, as an object and as text."""

import math
import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, TypeAlias

from aiolimit.arguments import check_limit, number

__all__ = ["UNLIMITED", "Limit", "Rate", "Unlimited", "check_rates"]


class Unlimited(Enum):
    """The type of `UNLIMITED`, which has one value and equals nothing else."""

    UNLIMITED = "unlimited"

    def __repr__(self) -> str:
        return self.name


#: Given as `limit=` on a call: the call passes and nothing is charged to its key.
#: Nothing else means "no limit": not 0 (which denies), not None, not infinity.
UNLIMITED: Final = Unlimited.UNLIMITED

Limit: TypeAlias = float | Literal[Unlimited.UNLIMITED]

_SECONDS: Final = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_NUMBER: Final = r"[0-9](?:_?[0-9])*(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"
_TEXT: Final = re.compile(rf"({_NUMBER})\s*(?:/|per\b)\s*({_NUMBER})?\s*([a-z]+)", re.IGNORECASE)
_FORMS: Final = (
    "write '<limit>/<unit>' or '<limit> per <number> <unit>', for example '100/s', "
    "'20 per minute', '5/250ms' or '1000/2h'; units are ms, s, min, h and d"
)


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `limit` of cost in every interval of `per` seconds.

    `limit` is any finite number from 0 up, and 0 denies every call; `per` is any finite number
    of seconds above 0. A limit between 0 and 1 could never pass a cost of 1, so it is written
    the other way round: `Rate(0.5)` is `Rate(1, per=2.0)`.

    Raises `ValueError` for a number out of range and `TypeError` for what is not a number.
    """

    limit: float
    per: float = 1.0

    def __post_init__(self) -> None:
        limit = check_limit(self.limit)
        per = float(number(self.per, "per"))
        if not 0 < per < math.inf:
            raise ValueError(f"per must be a finite number of seconds above 0, not {self.per!r}")
        if 0 < limit < 1:
            limit, per = 1, per / limit
            if per == math.inf:
                raise ValueError(f"limit {self.limit!r} per {self.per!r} s is too small a rate")
        object.__setattr__(self, "limit", limit)
        object.__setattr__(self, "per", per)

    @classmethod
    def parse(cls, text: str) -> "Rate":
        """Read a rate such as "100/s", "20 per minute", "5/250ms" or "1000/2h".

        Units are ms, s, min (or m), h and d, or their English names. Raises `ValueError`,
        which shows the part that could not be read and the accepted forms.
        """
        match = _TEXT.match(text.strip())
        if match is None or match.end() != len(text.strip()):
            bad = text.strip()[match.end() :] if match else text
            raise ValueError(f"cannot read {bad!r} in the rate {text!r}: {_FORMS}")
        limit, count, unit = match.groups()
        seconds = _SECONDS.get(unit.lower())
        if seconds is None:
            raise ValueError(f"unknown unit {unit!r} in the rate {text!r}: {_FORMS}")
        try:
            return cls(float(limit), float(count or 1) * seconds)
        except ValueError as error:
            raise ValueError(f"{error}, in the rate {text!r}") from None

    @classmethod
    def of(cls, rate: "Rate | str") -> "Rate":
        """Give a `Rate` back as it is, read one from text, refuse everything else."""
        if isinstance(rate, Rate):
            return rate
        if isinstance(rate, str):
            return cls.parse(rate)
        raise TypeError(f"a rate is a Rate or text, not {rate!r}: {_FORMS}")

    @property
    def period(self) -> str:
        """Its period as text, as in the text of a rate: "s", "2h"."""
        for unit in ("d", "h", "min", "s", "ms"):
            count = round(self.per / _SECONDS[unit])
            if count and count * _SECONDS[unit] == self.per:
                return f"{'' if count == 1 else count}{unit}"
        return f"{self.per}s"

    def __str__(self) -> str:
        return f"{self.limit}/{self.period}"


def check_rates(rates: tuple[Rate | str, ...]) -> tuple[Rate, ...]:
    """One rate or more, read where they are text."""
    if not rates:
        raise ValueError('a limiter needs at least one rate, such as Limiter("100/s")')
    return tuple(Rate.of(rate) for rate in rates)
