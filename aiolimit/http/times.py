"""Numbers and times as servers write them. What is none of these is None; nothing raises."""

import re
from datetime import datetime
from typing import Final

__all__ = ["number", "point_in_time", "seconds"]

_LONGEST: Final = 100  # characters; no number or time needs more
_LARGEST: Final = 1e14  # what is above is no number of anything here
_MILLISECONDS: Final = 1e12  # numbers above are milliseconds since 1970,
_SECONDS: Final = 1e9  # and above this seconds

_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_PART: Final = r"(?:([0-9]+(?:\.[0-9]*)?){})?"
_DURATION: Final = re.compile(
    "".join(map(_PART.format, ("h", "m", "s", "ms", "(?:us|µs|μs)", "ns")))
)
_SCALES: Final = (3600.0, 60.0, 1.0, 1e-3, 1e-6, 1e-9)
_ISO: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]+)?)?"
    r"(?:[Zz]|[+-][0-9]{2}:?[0-9]{2})"
)
_HTTP: Final = re.compile(r"[A-Z][a-z]{2,8},? .*[0-9]{2}:[0-9]{2}:[0-9]{2}.*")


def number(text: str) -> float | None:
    """A decimal number from 0 up, without sign or exponent."""
    text = text.strip(" \t")
    if len(text) > _LONGEST or not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    if value > _LARGEST:
        return None
    return int(value) if value.is_integer() else value


def seconds(text: str, base: float | None) -> float | None:
    """Seconds from `base` on, 0 or more: a number, a duration of Go's, or a point in time.

    base: seconds since 1970; without it no point in time can be used.
    """
    value = number(text)
    if value is not None and value <= _SECONDS:
        return value
    if value is not None:
        value = value / 1000 if value > _MILLISECONDS else value
    else:
        duration = _duration(text.strip(" \t"))
        if duration is not None:
            return duration
        value = point_in_time(text)
    if value is None or base is None:
        return None
    return min(max(0.0, value - base), _LARGEST)


def _duration(text: str) -> float | None:
    """A duration as Go prints it: `6m0s`, `1h2m3.5s`, `12ms`."""
    match = _DURATION.fullmatch(text) if 0 < len(text) <= _LONGEST else None
    if match is None:
        return None
    parts = zip(match.groups(), _SCALES, strict=True)
    return min(sum(float(part) * scale for part, scale in parts if part), _LARGEST)


def point_in_time(text: str) -> float | None:
    """Seconds since 1970: an HTTP date in any of its three forms, or a time of RFC 3339."""
    text = text.strip(" \t")
    if len(text) > _LONGEST:
        return None
    try:
        if _ISO.fullmatch(text):
            return datetime.fromisoformat(text.upper()).timestamp()
        if _HTTP.fullmatch(text):
            # Here, not above: it brings a good part of the standard library along.
            from email.utils import mktime_tz, parsedate_tz

            parsed = parsedate_tz(text)
            return None if parsed is None else float(mktime_tz(parsed))
    except (ValueError, OverflowError, IndexError, TypeError):
        pass  # a day or an hour that there is none of
    return None
