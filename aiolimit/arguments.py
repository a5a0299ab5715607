"""What the public face accepts: numbers in their ranges, refused with the value and the range."""

from math import inf
from numbers import Real

__all__ = ["check_cost", "check_count", "check_limit", "check_name", "check_wait", "number"]

_LARGE = 10**300  # whole numbers up to here are used as they are; no float holds much more


def number(value: object, name: str) -> float:
    """An `int` where the value is whole, as sums of those are exact, else a `float`."""
    if type(value) is int and -_LARGE < value < _LARGE:
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, not {value!r}")
    try:
        as_float = float(value)
    except OverflowError:
        raise ValueError(f"{name} must be a finite number, not one of {value!r:.20}...") from None
    return int(as_float) if as_float.is_integer() else as_float


def check_name(name: object, what: str = "name") -> str:
    """Text that is not empty, and that can be written as UTF-8, as metrics are."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"{what} must be text that is not empty, not {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be text that UTF-8 can hold, not {name!r}") from None
    return name


def check_cost(cost: object, name: str = "cost") -> float:
    """A cost, or what else is any finite number from 0 up."""
    checked = number(cost, name)
    if not 0 <= checked < inf:
        raise ValueError(f"{name} must be a finite number from 0 up, not {cost!r}")
    return checked


def check_limit(limit: object, name: str = "limit") -> float:
    """A limit: any finite number from 0 up."""
    checked = number(limit, name)
    if not 0 <= checked < inf:
        hint = "; no limit is spelled UNLIMITED" if checked == inf else ""
        raise ValueError(f"{name} must be a finite number from 0 up, not {limit!r}{hint}")
    return checked


def check_wait(seconds: object) -> float | None:
    """A bound on waiting: any finite number of seconds from 0 up, or None."""
    if seconds is None:
        return None
    checked = number(seconds, "max_wait")
    if not 0 <= checked < inf:
        raise ValueError(
            f"max_wait must be a finite number of seconds from 0 up, or None to wait as long "
            f"as it takes, not {seconds!r}"
        )
    return checked


def check_count(count: object, name: str, least: int) -> int | None:
    """A whole number of at least `least`, or None."""
    if count is None:
        return None
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"{name} must be a whole number or None, not {count!r}")
    if count < least:
        raise ValueError(f"{name} must be {least} or more, or None, not {count!r}")
    return count
