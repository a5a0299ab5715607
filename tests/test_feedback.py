"""Reading what servers say: every dialect by its documentation, and whatever else may come."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import format_datetime

import http_sf
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiolimit.http.feedback import Feedback, ServerQuota, read
from aiolimit.http.structured import Item, Token, parse_dictionary, parse_list
from tests.dialects import BEYOND, CASES, HOSTILE, Case


@pytest.mark.parametrize("case", [*CASES, *BEYOND], ids=lambda case: case.vendor)
@pytest.mark.parametrize("form", ["pairs", "bytes", "mapping"])
def test_a_documented_response(case: Case, form: str) -> None:
    headers: Iterable[tuple[object, object]] | dict[str, str] = case.headers
    if form == "bytes":
        headers = [(name.upper().encode(), value.encode()) for name, value in case.headers]
    elif form == "mapping":
        headers = dict(case.headers)
        if len(headers) < len(case.headers):
            headers = case.headers  # a header on several lines: no plain mapping has that
    found = read(headers, case.status, now=case.now)
    told = {
        quota.name: (quota.limit, quota.remaining, quota.reset_after, quota.window)
        for quota in found.quotas
    }
    expected = {name: values for name, *values in case.quotas}
    assert told.keys() == expected.keys()
    for name, values in expected.items():
        assert told[name] == pytest.approx(tuple(values)), name
    assert found.retry_after == pytest.approx(case.retry_after)


def is_sound(found: Feedback) -> bool:
    numbers = [found.retry_after, found.stated_retry_after, found.limit, found.remaining]
    for quota in found.quotas:
        numbers += [quota.limit, quota.remaining, quota.reset_after, quota.window]
    return all(
        number is None or (math.isfinite(number) and number >= 0) for number in numbers
    ) and (found.retry_after is None or found.retry_after <= 600)


@pytest.mark.parametrize(("headers", "status"), HOSTILE)
def test_what_is_malformed_raises_nothing(
    headers: tuple[tuple[str, str], ...], status: int
) -> None:
    for now in (None, 1_700_000_000.0):
        assert is_sound(read(headers, status, now=now))
        assert is_sound(read(dict(headers), status, now=now))


NAMES = sorted({name.lower() for case in CASES for name, _ in case.headers})
VALUES = sorted({value for case in CASES for _, value in case.headers})


@given(
    st.lists(
        st.tuples(
            st.one_of(st.sampled_from(NAMES), st.text(max_size=20), st.binary(max_size=20)),
            st.one_of(st.sampled_from(VALUES), st.text(max_size=30), st.binary(max_size=40)),
        ),
        max_size=8,
    ),
    st.integers(100, 599),
    st.none() | st.floats(0, 4e9),
)
@example([("retry-after", b"\xff\xfe")], 429, None)
def test_reading_never_raises(
    headers: list[tuple[object, object]], status: int, now: float | None
) -> None:
    assert is_sound(read(headers, status, now=now))


@given(st.sampled_from(NAMES), st.sampled_from(VALUES), st.integers(0, 30), st.text(max_size=3))
def test_reading_never_raises_on_what_is_nearly_right(
    name: str, value: str, at: int, put: str
) -> None:
    for status in (200, 429):
        assert is_sound(read([(name, value[:at] + put + value[at:])], status, now=1e9))
        assert is_sound(read([(name, value[:at] + value[at + 1 :])], status, now=1e9))


# Against a parser that is not ours -------------------------------------------------------------

PIECES = [
    '"a"',
    '"b\\"c"',
    "tok",
    "12",
    "-3",
    "1.5",
    ";",
    "=",
    "r",
    "t",
    "q",
    "w",
    ",",
    " ",
    ":YQ==:",
]
PIECES += ["?1", "@5", "(", ")", "limit=1", "\t", '"', "*", "0", '%"x%20"', "A", "9" * 16]
PIECES += [".", "é"]
FIELDS = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)


def theirs(text: str, kind: str) -> object:
    try:
        return http_sf.parse(text.encode(), tltype=kind)
    except (http_sf.StructuredFieldError, ValueError):
        return None


def bare(value: object) -> object:
    return str(value) if isinstance(value, http_sf.Token | str) else value


@given(FIELDS)
@example('"a";r=1;t=2, "b";r=3')
@example('"default";r=1,')
def test_lists_are_read_as_another_parser_reads_them(text: str) -> None:
    ours, other = parse_list(text), theirs(text, "list")
    if not isinstance(other, list) or not other:
        assert ours is None
        return
    if any(isinstance(value, list) for value, _ in other):
        assert ours is None, "inner lists are none of ours"
        return
    assert ours is not None
    for item, (value, parameters) in zip(ours, other, strict=True):
        assert list(item.parameters) == list(parameters)
        if isinstance(value, bool | int | str | http_sf.Token):
            assert bare(item.value) == bare(value)
            assert isinstance(item.value, Token) == isinstance(value, http_sf.Token)


@given(FIELDS)
@example("limit=100, remaining=50;x, reset=5")
def test_dictionaries_are_read_as_another_parser_reads_them(text: str) -> None:
    ours, other = parse_dictionary(text), theirs(text, "dictionary")
    if not isinstance(other, dict) or not other:
        assert ours is None
        return
    if any(isinstance(value, list) for value, _ in other.values()):
        assert ours is None
        return
    assert ours is not None
    assert list(ours) == list(other)


# The rules -------------------------------------------------------------------------------------


def date(at: float) -> str:
    return format_datetime(datetime.fromtimestamp(at, UTC), usegmt=True)


@pytest.mark.parametrize("skew", [-86400.0, 0.0, 86400.0])
def test_a_skewed_clock_does_no_harm(skew: float) -> None:
    ours, server = 1_700_000_000.0, 1_700_000_000.0 + skew
    for reset in (f"{server + 30:.0f}", f"{(server + 30) * 1000:.0f}", date(server + 30)):
        headers = {
            "Date": date(server),
            "X-RateLimit-Remaining": "0",
            "X-RateLimit-Reset": reset,
        }
        assert read(headers, 429, now=ours).retry_after == 30


def test_a_point_in_time_without_any_clock_is_absent() -> None:
    headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1700000030"}
    assert read(headers, 429).retry_after is None
    assert read(headers, 429, now=1_700_000_000).retry_after == 30


def test_what_is_obeyed_is_capped_and_what_was_said_is_kept() -> None:
    found = read({"retry-after": "86400"}, 429)
    assert (found.retry_after, found.stated_retry_after) == (600, 86400)
    assert read({"retry-after": "86400"}, 429, cap=5).retry_after == 5


@pytest.mark.parametrize(
    "field",
    [
        '"a";r=5;t=1, "b";r=-1;t=2',
        '"a";r=5;t=1, "b";t=2',
        '"a";r=5;t=1, "b";r=1.5',
        '"a";r=5;t=1, "b";r="1"',
        '"a";r=5;t=1, 7;r=1',
        '"a";r=5;t=1 "b"',
        '"a";r=5;t=1,',
    ],
)
def test_a_malformed_field_is_ignored_whole(field: str) -> None:
    assert read({"RateLimit": field}).quotas == ()
    policy = read({"RateLimit": field, "RateLimit-Policy": '"a";q=10;w=60'})
    assert policy.quotas == (ServerQuota("a", limit=10, window=60),)


@pytest.mark.parametrize("field", ['"a";q=10;w=0', '"a";q=10;w=1.5', '"a";w=60', '"a";q=-1'])
def test_a_malformed_policy_is_ignored_whole(field: str) -> None:
    headers = {"RateLimit": '"a";r=5;t=1', "RateLimit-Policy": f'{field}, "b";q=1'}
    assert read(headers).quotas == (ServerQuota("a", remaining=5, reset_after=1),)


def test_token_buckets_refill_until_they_are_full() -> None:
    headers = {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "30",
        "x-ratelimit-reset-requests": "30s",
        "anthropic-ratelimit-tokens-limit": "1000",
        "anthropic-ratelimit-tokens-remaining": "0",
        "anthropic-ratelimit-tokens-reset": "2025-08-21T12:40:59Z",
        "date": "Thu, 21 Aug 2025 12:40:39 GMT",
        "x-ratelimit-limit": "60",
        "x-ratelimit-remaining": "0",
        "x-ratelimit-reset": "30",
    }
    refills = {quota.name: quota.refill for quota in read(headers).quotas}
    assert refills == {"requests": 1.0, "tokens": 50.0, "": 0.0}


def test_the_binding_quota() -> None:
    fields = '"a";r=0;t=5, "b";r=0;t=50, "c";r=1;t=1000'
    found = read({"RateLimit": fields, "RateLimit-Policy": '"a";q=1, "b";q=1000, "c";q=9'})
    assert (found.limit, found.remaining, found.reset_after) == (1000, 0, 50)
    found = read({"RateLimit": '"a";r=90, "b";r=500', "RateLimit-Policy": '"a";q=100,"b";q=9000'})
    assert (found.binding.name, found.limit, found.remaining) == ("b", 9000, 500)
    assert read({}).binding == ServerQuota("")


def test_what_is_no_number_of_anything() -> None:
    assert read({"ratelimit-limit": "?1"}).quotas == ()
    assert read({"retry-after": "1700000000000000"}, 429, now=1.7e9).retry_after is None
    assert read({"retry-after-ms": "1500000000"}, 429, now=1.7e9).stated_retry_after == 1.5e6
    window = read(
        {"x-hubspot-ratelimit-max": "5", "x-hubspot-ratelimit-interval-milliseconds": "0"}
    )
    assert window.quotas == (ServerQuota("", limit=5),)


@pytest.mark.parametrize(
    ("status", "headers", "refused"),
    [
        (429, {}, True),
        (503, {}, False),
        (503, {"retry-after": "3"}, True),
        (403, {"x-ratelimit-remaining": "40"}, False),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "9"}, True),
        (403, {"retry-after": "60"}, True),
        (529, {"retry-after": "1"}, True),
        (200, {"retry-after": "1", "x-ratelimit-remaining": "0"}, False),
        (404, {"retry-after": "1"}, False),
    ],
)
def test_what_is_a_refusal(status: int, headers: dict[str, str], refused: bool) -> None:
    assert read(headers, status).is_refusal is refused


def test_items_know_strings_from_tokens() -> None:
    assert parse_list('"a";x, a;y=b') == [
        Item("a", {"x": True}),
        Item(Token("a"), {"y": Token("b")}),
    ]
