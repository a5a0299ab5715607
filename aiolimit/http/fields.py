"""What a limiter says in HTTP: pure functions from quotas and refusals to fields and bodies.

Written are `Retry-After` (RFC 9110, 10.2.3), and one of

- "draft-11": `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-11, lists
  of structured fields (RFC 9651) with one item for each rate. Their names are here and nowhere
  else, as drafts have changed them four times.
- "legacy": the `X-RateLimit-Limit`, `-Remaining` and `-Reset` of many services, of the rate that
  binds; the reset is in seconds since 1970, as GitHub and flask-limiter have it.
- None: neither.

The body of a refusal is a problem (RFC 9457) of the types which the draft registers.
What servers say, in these and all other dialects, `feedback.py` reads.
"""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from math import ceil, floor, inf
from typing import Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

from aiolimit.errors import Overloaded, RateLimited, StoreUnavailable
from aiolimit.http.structured import parse_list
from aiolimit.rate import UNLIMITED, Rate

__all__ = [
    "LIMIT",
    "NAMES",
    "SPOKEN",
    "Dialect",
    "Policy",
    "Standing",
    "asked",
    "check_dialect",
    "legacy",
    "merged",
    "overload_body",
    "overload_headers",
    "policies",
    "quota_body",
    "quota_fields",
    "refusal_body",
    "refusal_headers",
    "retry_after",
    "status",
]

#: How a service tells its clients what they have left.
Dialect: TypeAlias = Literal["draft-11", "legacy"] | None

#: Of each rate of a limiter what is left, as cost, and the seconds until there is more; None for
#: a rate that does not apply.
Standing: TypeAlias = Sequence[tuple[float, float] | None]

Pairs: TypeAlias = list[tuple[bytes, bytes]]

POLICY: Final = b"ratelimit-policy"
LIMIT: Final = b"ratelimit"
_LEGACY: Final = (b"x-ratelimit-limit", b"x-ratelimit-remaining", b"x-ratelimit-reset")
NAMES: Final = frozenset((POLICY, LIMIT, *_LEGACY))
_AFTER: Final = b"retry-after"
#: What in a response has a say in what we write there; servers take other spellings as well.
SPOKEN: Final = frozenset(
    (
        *(_AFTER, b"Retry-After", *NAMES),
        *(b"RateLimit", b"RateLimit-Policy", b"Ratelimit", b"Ratelimit-Policy"),
        *(b"X-RateLimit-Limit", b"X-RateLimit-Remaining", b"X-RateLimit-Reset"),
    )
)
_ITEM: Final = re.compile(rb'"(?:[^"\\]|\\.)*"[^,]*')
_DIGITS: Final = 16

_PLAIN: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
LARGEST: Final = 999_999_999_999_999  # of a structured field's integers
_ROUNDING: Final = 1e-9  # seconds by which a sum of times may be off
_TYPES: Final = "https://iana.org/assignments/http-problem-types#"
_PROBLEM: Final = "application/problem+json"


def check_dialect(headers: object) -> Dialect:
    """One of the dialects; raises `ValueError` for anything else."""
    if headers not in ("draft-11", "legacy", None):
        raise ValueError(f'headers must be "draft-11", "legacy" or None, not {headers!r}')
    return headers


def retry_after(seconds: float) -> int:
    """The value of `Retry-After`: whole seconds, rounded up, at least 1."""
    whole = ceil(seconds - _ROUNDING)
    return 1 if whole < 1 else whole if whole < LARGEST else LARGEST


def status(refused: RateLimited) -> int:
    """429, as the caller asked too often; 503, as this server is overloaded, or cannot tell."""
    return 503 if isinstance(refused, Overloaded | StoreUnavailable) else 429


class Policy(NamedTuple):
    """One rate of a limiter in the draft's words.

    name: of the limiter, and of the period where it has several rates.
    quota: the limit, as a whole cost.
    head: the item of `RateLimit`, up to the number that says what is left.
    item: the item of `RateLimit-Policy`.
    """

    name: str
    quota: int
    head: bytes
    item: bytes


@lru_cache(maxsize=1024)
def policies(
    limiter: str, rates: tuple[Rate, ...], limits: tuple[float | None, ...]
) -> tuple[Policy | None, ...]:
    """What the rates of a limiter are called under those limits; None where one does not apply.

    A period that is no whole number of seconds cannot be told, so its item has no window.
    """
    made: list[Policy | None] = []
    for index, (rate, limit) in enumerate(zip(rates, limits, strict=True)):
        if limit is None:
            made.append(None)
            continue
        name = limiter if len(rates) == 1 else f"{limiter}-{str(rate).partition('/')[2]}"
        if any(other.per == rate.per for other in rates[:index]):
            name += f"-{index + 1}"
        # A structured field's string is of ASCII only, so what is none is percent-encoded.
        name = quote(name, safe=_PLAIN, errors="replace")
        escaped = name.replace("\\", "\\\\").replace('"', '\\"')
        text, quota = f'"{escaped}"', _whole(limit)
        window = f";w={_whole(rate.per)}" if rate.per.is_integer() else ""
        made.append(
            Policy(name, quota, f"{text};r=".encode(), f"{text};q={quota}{window}".encode())
        )
    return tuple(made)


def quota_fields(
    known: Sequence[Policy | None], standing: Standing, after: int | None = None
) -> Pairs:
    """`RateLimit-Policy` and `RateLimit` for what is left; nothing where no rate applies.

    after: the `Retry-After` of the same response, before which no window may end (section 6 of
        the draft). What is left holds for any shorter time as well.
    """
    items, states = [], []
    for policy, state in zip(known, standing, strict=True):
        if policy is None or state is None:
            continue
        left, more = state
        items.append(policy.item)
        if 0 < more < inf:
            seconds = retry_after(more)
            if after is not None and after < seconds:
                seconds = after
            states.append(b"%b%d;t=%d" % (policy.head, _whole(left), seconds))
        else:
            states.append(b"%b%d" % (policy.head, _whole(left)))
    if len(items) < 2:
        return [(POLICY, items[0]), (LIMIT, states[0])] if items else []
    return [(POLICY, b", ".join(items)), (LIMIT, b", ".join(states))]


def legacy(known: Sequence[Policy | None], standing: Standing, now: float) -> Pairs:
    """The triple of the rate that has the least left, at that time in seconds since 1970."""
    found = [
        (_whole(state[0]), -state[1], policy.quota)
        for policy, state in zip(known, standing, strict=True)
        if policy is not None and state is not None
    ]
    if not found:
        return []
    left, more, quota = min(found)
    values = quota, left, ceil(now - more)
    return [(name, b"%d" % value) for name, value in zip(_LEGACY, values, strict=True)]


def asked(headers: Pairs) -> int | None:
    """The seconds of a `Retry-After` among headers that somebody else has written."""
    for name, value in headers:
        if name.lower() == _AFTER and value.isdigit() and len(value) < _DIGITS:
            return int(value)
    return None


def merged(theirs: Pairs, ours: Pairs) -> Pairs:
    """The fields of a response with ours: one line for each, whoever else has written there.

    Lists are joined, without those of our items that are there by name; what is no list gives way.
    Of two triples the one stays that has less left.
    """
    found: dict[bytes, bytes] = {}
    kept = []
    for name, value in theirs:
        if (lower := name.lower()) in NAMES:
            found[lower] = b"%b, %b" % (found[lower], value) if lower in found else value
        else:
            kept.append((name, value))
    if not found:
        return kept + ours
    fresh = dict(ours)
    if found.keys() >= set(_LEGACY) and _LEGACY[1] in fresh:
        left = found[_LEGACY[1]]
        if left.isdigit() and len(left) < _DIGITS and int(left) <= int(fresh[_LEGACY[1]]):
            fresh = {name: value for name, value in fresh.items() if name not in _LEGACY}
    for name, value in fresh.items():
        found[name] = _joined(found.get(name), value) if name in (POLICY, LIMIT) else value
    return kept + list(found.items())


def _joined(theirs: bytes | None, ours: bytes) -> bytes:
    known = None if theirs is None else parse_list(theirs.decode("latin-1"))
    if theirs is None or known is None:
        return ours
    names = {item.value for item in known}
    items = [(item, parse_list(item.decode())) for item in _ITEM.findall(ours)]
    return b", ".join(
        [theirs, *(item for item, read in items if read is None or read[0].value not in names)]
    )


def refusal_headers(
    refused: RateLimited, headers: Dialect = "draft-11", now: float | None = None
) -> dict[str, str]:
    """The headers of a refusal. There is no `Retry-After` where the call can never pass.

    now: in seconds since 1970, `time.time()`; the legacy triple counts from it.

    Raises `ValueError` for headers that are no dialect, and for "legacy" without now.
    """
    if check_dialect(headers) == "legacy" and now is None:
        raise ValueError('headers="legacy" needs now, in seconds since 1970, not None')
    if isinstance(refused, Overloaded | StoreUnavailable):
        return overload_headers(retry_after(refused.retry_after))
    made = {"content-type": _PROBLEM}
    after = None
    if refused.retry_after is not None:
        after = retry_after(refused.retry_after)
        made["retry-after"] = str(after)
    known, standing = _told(refused)
    pairs: Pairs = []
    if headers == "draft-11":
        pairs = quota_fields(known, standing, after)
    elif now is not None and headers == "legacy":
        pairs = legacy(known, standing, now)
    return made | {name.decode(): value.decode() for name, value in pairs}


def refusal_body(refused: RateLimited) -> bytes:
    """The problem that a refusal is: which policies it violates, and how long to wait.

    It names no key: what identifies one caller is nothing to tell another. An overloaded server
    names no policy either, as the caller's quota has nothing to do with it.
    """
    if isinstance(refused, Overloaded | StoreUnavailable):
        why = _UNKNOWN if isinstance(refused, StoreUnavailable) else _BUSY
        return overload_body(retry_after(refused.retry_after), why)
    known, _ = _told(refused)
    violated = [
        policy.name
        for policy, quota in zip(known, refused.quotas, strict=True)
        if policy is not None and quota.retry_after != 0
    ]
    if not violated:  # it stands behind others, who wait for this one
        violated = [policy.name for policy in known if policy is not None][-1:]
    after = None if refused.retry_after is None else retry_after(refused.retry_after)
    return quota_body(tuple(violated), after)


@lru_cache(maxsize=1024)
def quota_body(violated: tuple[str, ...], after: int | None) -> bytes:
    """The problem "quota-exceeded"."""
    names = ", ".join(violated)
    detail = f"{names}: no quota is left for this request; try again in {after} s"
    if after is None:
        detail = f"{names}: this request costs more than the limit, so it can never pass"
    return _problem(
        "quota-exceeded",
        "Request cannot be satisfied as assigned quota has been exceeded",
        429,
        detail,
        violated,
        after,
    )


def overload_headers(seconds: int) -> dict[str, str]:
    """The headers of an overloaded server, which hopes for better times in so many seconds."""
    return {"content-type": _PROBLEM, "retry-after": str(seconds)}


_BUSY: Final = "the server has more to do than it can"
_UNKNOWN: Final = "the server cannot tell now what quota is left"


@lru_cache(maxsize=256)
def overload_body(seconds: int, why: str = _BUSY) -> bytes:
    """The problem "temporary-reduced-capacity", which goes with them."""
    return _problem(
        "temporary-reduced-capacity",
        "Request cannot be satisfied due to temporary server capacity constraints",
        503,
        f"{why}; try again in {seconds} s",
        (),
        seconds,
    )


def _problem(
    kind: str, title: str, code: int, detail: str, violated: tuple[str, ...], after: int | None
) -> bytes:
    members: dict[str, object] = {
        "type": _TYPES + kind,
        "title": title,
        "status": code,
        "detail": detail,
        "violated-policies": violated,
    }
    if after is not None:
        members["retry-after"] = after
    return json.dumps(members).encode()


def _told(refused: RateLimited) -> tuple[tuple[Policy | None, ...], Standing]:
    """What an error tells of the rates it was refused under."""
    limits = tuple(
        None if quota.limit is UNLIMITED else quota.rate.limit for quota in refused.quotas
    )
    known = policies(refused.limiter, tuple(quota.rate for quota in refused.quotas), limits)
    return known, [(quota.remaining, quota.more_after) for quota in refused.quotas]


def _whole(number: float) -> int:
    """A cost as the fields have it: whole, not more than there is, and not below 0."""
    if number >= LARGEST:
        return LARGEST
    return floor(number) if number > 0 else 0
