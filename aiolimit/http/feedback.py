"""What a server says of its limits: any response's headers in, one `Feedback` out. Pure.

There are four generations of the RateLimit fields (see `fields.py`) and as many dialects as
services; the tables here know them. Whatever comes, reading never raises: what is malformed counts
as absent, and only that. Three rules hold for all of them.

1. A number's magnitude tells what it is: above 1e12 milliseconds since 1970, above 1e9 seconds
   since 1970, else seconds from now.
2. A point in time is measured against the response's own `Date`: a clock that is wrong, theirs or
   ours, does no harm.
3. Nobody can make us wait for ever: what a server asks for is obeyed up to a cap.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, TypeAlias

from aiolimit.http.structured import Item, parse_dictionary, parse_list
from aiolimit.http.times import number, point_in_time, seconds

__all__ = ["CAP", "Feedback", "Headers", "ServerQuota", "read"]

CAP: Final = 600.0  # seconds

#: Headers as clients have them: names and values, as text or bytes, in any case.
Headers: TypeAlias = Mapping[str, str] | Mapping[bytes, bytes] | Iterable[tuple[object, object]]

_REFUSALS: Final = (429, 503, 403, 529)
_QUOTAS: Final = 64  # that are kept; names come from outside


@dataclass(frozen=True, slots=True)
class ServerQuota:
    """One counter that a server has told of; None where it did not say.

    name: "" for the only one, the name of its policy, or what it counts, such as "tokens".
    limit: cost in `window` seconds. remaining: cost. reset_after: seconds until more of it is
    there, or all: servers differ.
    refill: cost a second that comes back evenly until then, of services known for it (OpenAI's
        and Anthropic's are token buckets, and tell when all is there); 0 elsewhere.
    """

    name: str
    limit: float | None = None
    remaining: float | None = None
    reset_after: float | None = None
    window: float | None = None
    refill: float = 0.0


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a response says of the server's limits. `None` is what it does not say.

    status: of the response.
    quotas: all counters it tells of.
    retry_after: seconds to wait before asking again, at most the cap; where a refusal names no
        time, until the quota that is exhausted is there again.
    stated_retry_after: the same without the cap.
    """

    status: int
    quotas: tuple[ServerQuota, ...] = ()
    retry_after: float | None = None
    stated_retry_after: float | None = None

    @property
    def binding(self) -> ServerQuota:
        """The quota that matters most: exhausted for longest, or else with the least share left."""
        return max(self.quotas, key=_urgency, default=_NOTHING)

    @property
    def limit(self) -> float | None:
        """The limit of the binding quota, as cost."""
        return self.binding.limit

    @property
    def remaining(self) -> float | None:
        """What is left of the binding quota, as cost."""
        return self.binding.remaining

    @property
    def reset_after(self) -> float | None:
        """Seconds until there is more of the binding quota."""
        return self.binding.reset_after

    @property
    def is_refusal(self) -> bool:
        """Whether it was refused for a limit: 429, or a 403, 503 or 529 that says for how long."""
        if self.status == 429:
            return True
        return self.status in _REFUSALS and self.retry_after is not None


_NOTHING: Final = ServerQuota("")


def _urgency(quota: ServerQuota) -> tuple[float, float]:
    left = quota.remaining
    if left is None:
        return -2.0, 0.0
    if left <= 0:
        return 1.0, quota.reset_after or 0.0
    return -left / max(quota.limit, left) if quota.limit else -1.0, -left


def read(
    headers: Headers, status: int = 200, *, now: float | None = None, cap: float = CAP
) -> Feedback:
    """Read what the headers of a response say of the server's limits. Never raises.

    now: seconds since 1970, for points in time in a response without a `Date`; without both, such
        points are absent.
    cap: the most seconds that are obeyed.
    """
    lines = _lines(headers)
    base = next((at for text in lines.get("date", ()) if (at := point_in_time(text))), now)
    found: dict[str, dict[str, float]] = {}
    buckets = _read_names(lines, base, found)
    _read_odd_names(lines, found)
    _read_drafts(lines, found)
    for name, parts in found.items():
        if window := _WINDOWS.get(name.rpartition("-")[2]):
            parts.setdefault("window", window)
        used = parts.get("limit", 0.0) - parts.get("remaining", 0.0)
        if name in buckets and used > 0 and parts.get("reset_after"):
            parts["refill"] = used / parts["reset_after"]
    quotas = tuple(
        ServerQuota(name, **{part: value for part, value in parts.items() if part in _PARTS})
        for name, parts in list(found.items())[:_QUOTAS]
        if parts.keys() & {"limit", "remaining", "reset_after"}
    )
    stated = _stated(lines, base, status, quotas)
    obeyed = None if stated is None else min(stated, cap)
    return Feedback(status, quotas, obeyed, stated)


_PARTS: Final = ("limit", "remaining", "reset_after", "window", "refill")


def _lines(headers: Headers) -> dict[str, list[str]]:
    """The values of each header, by its name in lower case, in their order."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(_text(name).lower(), []).append(_text(value))
    return found


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


# How long to wait ------------------------------------------------------------------------------


def _stated(
    lines: dict[str, list[str]], base: float | None, status: int, quotas: tuple[ServerQuota, ...]
) -> float | None:
    """How long the server asks to wait. On what was served, `Retry-After` asks for nothing."""
    if status < 300:
        return None
    milliseconds = [number(text) for text in lines.get("retry-after-ms", ())]
    if waits := [after / 1000 for after in milliseconds if after is not None]:
        return max(waits)
    for name in ("retry-after", "x-ratelimit-retry-after"):
        said = [seconds(text, base) for text in lines.get(name, ())]
        if waits := [after for after in said if after is not None]:
            return max(waits)
    if status < 400:
        return None
    resets = [(quota.remaining, quota.reset_after) for quota in quotas]
    exhausted = [after for left, after in resets if left == 0 and after is not None]
    if not exhausted and status == 429:
        exhausted = [after for left, after in resets if left is None and after]
    return max(exhausted, default=None)


# Headers whose names tell what they are --------------------------------------------------------

# Prefixes, the more general first: what comes later takes its place. Not any prefix will do, as
# `beta-ratelimit` is a limit that does not hold yet.
_PREFIXES: Final = {
    "x-rate-limit-": "",
    "x-ratelimit-": "",
    "ratelimit-": "",
    "anthropic-ratelimit-": "",
    "anthropic-priority-": "priority-",
    "x-hubspot-ratelimit-": "",
    "x-ms-ratelimit-": "",
    "x-sib-ratelimit-": "",
    "x-contentful-ratelimit-": "",
}
_WHAT: Final = r"limit|remaining|reset-after|reset"
_OPENAI: Final = ("-requests", "-tokens", "-tokens_usage_based")  # behind what they are
_FIRST: Final = re.compile(rf"({_WHAT})(?:-([\w-]+))?", re.ASCII)
_LAST: Final = re.compile(rf"([\w-]+)-({_WHAT})", re.ASCII)
_WINDOWS: Final = {
    **dict.fromkeys(("second", "secondly"), 1.0),
    **dict.fromkeys(("min", "minute"), 60.0),
    **dict.fromkeys(("hour", "hourly"), 3600.0),
    **dict.fromkeys(("day", "daily"), 86400.0),
}


def _read_names(
    lines: dict[str, list[str]], base: float | None, found: dict[str, dict[str, float]]
) -> set[str]:
    """The triples of all dialects: `X-RateLimit-Remaining-Tokens` and the like.

    Returns the names of those which refill evenly.
    """
    buckets: set[str] = set()
    for prefix, prefixed in _PREFIXES.items():
        for header, values in lines.items():
            if not header.startswith(prefix) or len(header) > 100:
                continue
            rest = header[len(prefix) :]
            if match := _FIRST.fullmatch(rest):
                what, name = match[1], match[2] or ""
            elif match := _LAST.fullmatch(rest):
                name, what = match[1], match[2]
            else:
                continue
            quota = found.setdefault(prefixed + name, {})
            if header.startswith("anthropic-") or rest.endswith(_OPENAI):
                buckets.add(prefixed + name)
            if what == "limit":
                _read_limit(values, quota)
            elif what == "remaining":
                left = [number(text.partition(";")[0]) for text in values]
                _note(quota, what, min((one for one in left if one is not None), default=None))
            else:
                after = [seconds(text, base) for text in values]
                latest = max((one for one in after if one is not None), default=None)
                _note(quota, "exact_reset" if what == "reset-after" else "reset_after", latest)
    for quota in found.values():
        if "exact_reset" in quota:
            quota["reset_after"] = quota.pop("exact_reset")
    return buckets


def _note(quota: dict[str, float], what: str, value: float | None) -> None:
    if value is not None:
        quota[what] = value


def _read_limit(values: list[str], quota: dict[str, float]) -> None:
    """A limit, which may come with the policies behind it: `100, 100;w=60`."""
    items = parse_list(", ".join(values))
    if items is None or not all(_window(item) for item in items[1:]):
        _note(quota, "limit", number(values[0]))
    elif not isinstance(value := items[0].value, bool | str) and value >= 0:
        quota["limit"] = value
        _lend_window(items, quota)


def _window(item: Item) -> float | None:
    """The window of a policy without a name, in seconds."""
    window = item.parameters.get("w", item.parameters.get("window"))
    return window if type(window) is int and window > 0 else None


def _lend_window(policies: list[Item], quota: dict[str, float]) -> None:
    """Give a counter the window of the policy with its limit, or of the only one."""
    windows = {item.value: window for item in policies if (window := _window(item))}
    if quota.get("limit") in windows:
        quota["window"] = windows[quota["limit"]]
    elif len(windows) == 1:
        quota["window"] = next(iter(windows.values()))


# Headers whose names do not --------------------------------------------------------------------

_SHARE: Final = re.compile(r"\s*(?:[\w-]+=)?([0-9]{1,15})/([0-9]{1,15})\s*", re.ASCII)


def _share(text: str) -> dict[str, float]:
    """Used and limit, as in `32/40`."""
    match = _SHARE.fullmatch(text)
    if match is None or int(match[2]) == 0:
        return {}
    used, limit = int(match[1]), int(match[2])
    return {"limit": limit, "remaining": max(0, limit - used)}


def _plain(part: str, scale: float = 1.0) -> Callable[[str], dict[str, float]]:
    def read_it(text: str) -> dict[str, float]:
        value = number(text)
        return {part: value * scale} if value or (value == 0 and part != "window") else {}

    return read_it


_ODD: Final[dict[str, tuple[str, Callable[[str], dict[str, float]]]]] = {
    "x-shopify-shop-api-call-limit": ("", _share),
    "sforce-limit-info": ("api-usage", _share),
    "x-rate-limit": ("", _plain("limit")),  # Zendesk
    "x-hubspot-ratelimit-max": ("", _plain("limit")),
    "x-hubspot-ratelimit-interval-milliseconds": ("", _plain("window", 0.001)),
    "x-hubspot-ratelimit-daily": ("daily", _plain("limit")),
    "x-hubspot-ratelimit-secondly": ("secondly", _plain("limit")),
    "x-ratelimit-interval-seconds": ("", _plain("window")),  # Atlassian
    "x-rate-limit-requests-quota": ("requests", _plain("limit")),  # BigCommerce
    "x-rate-limit-requests-left": ("requests", _plain("remaining")),
    "x-rate-limit-time-reset-ms": ("requests", _plain("reset_after", 0.001)),
    "x-rate-limit-time-window-ms": ("requests", _plain("window", 0.001)),
    "x-daylimit-remaining": ("day", _plain("remaining")),  # Xero
    "x-minlimit-remaining": ("min", _plain("remaining")),
    "x-appminlimit-remaining": ("app-min", _plain("remaining")),
}


def _read_odd_names(lines: dict[str, list[str]], found: dict[str, dict[str, float]]) -> None:
    for header, (name, reader) in _ODD.items():
        for text in lines.get(header, ()):
            parts = reader(text)
            if parts:
                found.setdefault(name, {}).update(parts)


# The drafts ------------------------------------------------------------------------------------


def _read_drafts(lines: dict[str, list[str]], found: dict[str, dict[str, float]]) -> None:
    """`RateLimit` and `RateLimit-Policy` of all generations."""
    counters = ", ".join(lines.get("ratelimit", ()))
    items = parse_list(counters)
    if items is not None:
        named = [_counter(item) for item in items]
        if all(named):
            for name, parts in filter(None, named):
                # Of two with one name the one that is nearer to its end.
                known = found.get(name, {}).get("remaining", inf)
                if parts["remaining"] <= known:
                    found.setdefault(name, {}).update(parts)
    elif (members := parse_dictionary(counters)) is not None:
        told = {key: item.value for key, item in members.items() if key in _B}
        if told and all(_is_natural(value) for value in told.values()):
            quota = found.setdefault("", {})
            quota.update({_B[key]: float(value) for key, value in told.items()})
    policies = parse_list(", ".join(lines.get("ratelimit-policy", ())))
    if policies is None:
        return
    if all(_is_natural(item.value) for item in policies):
        if "" in found:
            _lend_window(policies, found[""])
        return
    known_policies = [_policy(item) for item in policies]
    if all(known_policies):
        for name, parts in filter(None, known_policies):
            quota = found.setdefault(name, {})
            for part, value in parts.items():
                quota.setdefault(part, value)


_B: Final = {"limit": "limit", "remaining": "remaining", "reset": "reset_after"}


def _is_natural(value: object) -> bool:
    return type(value) is int and value >= 0


def _counter(item: Item) -> tuple[str, dict[str, float]] | None:
    """A service limit item: `"burst";r=50;t=30`, or `burst;a=50;w=30` in generation D."""
    if not isinstance(item.value, str):
        return None
    left_key, time_key = ("r", "t") if "r" in item.parameters else ("a", "w")
    left, after = item.parameters.get(left_key), item.parameters.get(time_key, 0)
    if not _is_natural(left) or not _is_natural(after):
        return None
    parts = {"remaining": float(left or 0)}
    if time_key in item.parameters:
        parts["reset_after"] = float(after)
    return item.value, parts


def _policy(item: Item) -> tuple[str, dict[str, float]] | None:
    """A quota policy item: `"burst";q=100;w=60`."""
    quota, window = item.parameters.get("q"), item.parameters.get("w")
    if not isinstance(item.value, str) or not _is_natural(quota):
        return None
    parts = {"limit": float(quota or 0)}
    if "w" in item.parameters:
        if type(window) is not int or window <= 0:
            return None
        parts["window"] = float(window)
    return item.value, parts
