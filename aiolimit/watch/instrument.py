"""One metric: its name, what it tells, and how it is read.

Prometheus (`metrics.py`), OpenTelemetry (`otel.py`) and the live page (`dashboard/`) all read the
tables of these (`of_limiter.py`, `of_load.py`), so they tell the same story in the same words.
Reading takes plain numbers that are there anyway; nothing is counted for it. No label ever holds a
key or any other text of a caller's.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Generic, Literal, TypeAlias, TypeVar

from aiolimit.tally import Waits

__all__ = ["Instrument", "Value", "Values", "known", "one"]

S = TypeVar("S")

#: A number, or the buckets of a histogram.
Value: TypeAlias = float | Waits

#: Values, and the labels they are told apart by.
Values: TypeAlias = Iterable[tuple[tuple[str, ...], Value]]


@dataclass(frozen=True, slots=True, eq=False)
class Instrument(Generic[S]):
    """One metric.

    name: as in Prometheus, where a counter has `_total` behind it.
    help: what it tells, and what to do about it.
    unit: of OpenTelemetry, such as "s" or "{call}".
    labels: what the values are told apart by, besides the name of the limiter or controller.
    read: the values of one limiter or controller, by those labels.
    combine: what two of the same name are together, as in several processes.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    unit: str
    labels: tuple[str, ...]
    read: Callable[[S], Values]
    combine: Literal["sum", "min", "max"] = "sum"


def one(read: Callable[[S], Value]) -> Callable[[S], Values]:
    """The reader of a metric that has one value."""
    return lambda subject: (((), read(subject)),)


def known(read: Callable[[S], float | None]) -> Callable[[S], Values]:
    """The reader of a metric that has one value, once it is known."""

    def values(subject: S) -> Values:
        value = read(subject)
        return () if value is None or not isfinite(value) else (((), value),)

    return values
