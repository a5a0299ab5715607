"""Rates as objects and as text."""

import math
import pickle
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiolimit import UNLIMITED, Rate


@pytest.mark.parametrize(
    ("text", "rate", "shown"),
    [
        ("100/s", Rate(100), "100/s"),
        ("20 per minute", Rate(20, per=60), "20/min"),
        ("5/250ms", Rate(5, per=0.25), "5/250ms"),
        ("1000/2h", Rate(1000, per=7200), "1000/2h"),
        ("  7 / 90 Seconds ", Rate(7, per=90), "7/90s"),
        ("10 per 2 days", Rate(10, per=2 * 86400), "10/2d"),
        ("3/m", Rate(3, per=60), "3/min"),
        ("2.5/s", Rate(2.5), "2.5/s"),
        ("1_000_000/h", Rate(1_000_000, per=3600), "1000000/h"),
        ("0/s", Rate(0), "0/s"),
        ("1e3/s", Rate(1000), "1000/s"),
        ("1/1.5s", Rate(1, per=1.5), "1/1500ms"),
    ],
)
def test_text(text: str, rate: Rate, shown: str) -> None:
    assert Rate.parse(text) == rate
    assert str(rate) == shown
    assert Rate.parse(shown) == rate


@pytest.mark.parametrize(
    ("text", "bad"),
    [
        ("100", "'100'"),
        ("", "''"),
        ("a/s", "'a/s'"),
        ("-1/s", "'-1/s'"),
        ("inf/s", "'inf/s'"),
        ("nan/s", "'nan/s'"),
        ("100/fortnight", "'fortnight'"),
        ("5 permin", "'5 permin'"),
        ("10/s/s", "'/s'"),
        ("100/s; 2000/min", "'; 2000/min'"),
        ("100/s,", "','"),
        ("100_/s", "'100_/s'"),
        ("100/0s", "0.0"),
        ("1e999/s", "inf"),
        ("\u0661/s", "'\u0661/s'"),
    ],
)
def test_bad_text_is_shown_with_the_accepted_forms(text: str, bad: str) -> None:
    with pytest.raises(ValueError, match=re.escape(bad)) as caught:
        Rate.parse(text)
    assert repr(text) in str(caught.value)


def test_bad_text_names_the_accepted_forms() -> None:
    with pytest.raises(ValueError, match=re.escape("'20 per minute', '5/250ms' or '1000/2h'")):
        Rate.parse("lots")


@pytest.mark.parametrize(
    ("limit", "per", "error", "message"),
    [
        (-1, 1, ValueError, "limit must be a finite number from 0 up, not -1"),
        (math.nan, 1, ValueError, "not nan"),
        (math.inf, 1, ValueError, "no limit is spelled UNLIMITED"),
        (True, 1, TypeError, "limit must be a number, not True"),
        ("5", 1, TypeError, "limit must be a number, not '5'"),
        (None, 1, TypeError, "limit must be a number, not None"),
        (UNLIMITED, 1, TypeError, "limit must be a number, not UNLIMITED"),
        (5, 0, ValueError, "per must be a finite number of seconds above 0, not 0"),
        (5, -1, ValueError, "not -1"),
        (5, math.inf, ValueError, "not inf"),
        (5, math.nan, ValueError, "not nan"),
        (5, False, TypeError, "per must be a number, not False"),
        (5e-324, 1e300, ValueError, "too small a rate"),
    ],
)
def test_numbers_out_of_range(
    limit: float, per: float, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        Rate(limit, per)


def test_a_limit_below_one_is_written_the_other_way_round() -> None:
    assert Rate(0.5) == Rate(1, per=2)
    assert Rate(0.7692307692307693).per == pytest.approx(1.3)
    assert Rate.parse("1e-10/s") == Rate(1, per=1e10)


def test_whole_numbers_are_kept_exact() -> None:
    assert type(Rate(100.0).limit) is int
    assert Rate(Fraction(5, 2)).limit == 2.5  # type: ignore[arg-type]


@given(
    st.one_of(st.integers(1, 10**9), st.floats(1, 1e9)),
    st.one_of(st.integers(1, 10**7), st.floats(1e-6, 1e9)),
)
def test_text_and_back(limit: float, per: float) -> None:
    rate = Rate(limit, per)
    assert Rate.parse(str(rate)) == rate


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        rate = Rate.parse(text)
    except ValueError:
        return
    assert rate.per > 0


def test_rates_are_values() -> None:
    assert hash(Rate(5)) == hash(Rate.parse("5/s"))
    assert pickle.loads(pickle.dumps(Rate(5))) == Rate(5)
    assert pickle.loads(pickle.dumps(UNLIMITED)) is UNLIMITED
    assert repr(UNLIMITED) == "UNLIMITED"
    assert UNLIMITED != math.inf
    with pytest.raises(AttributeError):
        Rate(5).limit = 6  # type: ignore[misc]
