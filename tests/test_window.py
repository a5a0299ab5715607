"""The window against its definition, and the tables of the design."""

import copy
import math
import pickle
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aiolimit.window import Window, seconds_until, span_of
from tests.oracle import ExactLog, FixedWindow, WholeSubWindows

TEN_YEARS = 10 * 365.25 * 86400


class Counter:
    """One window with its settings, so that a test reads like a user's code."""

    def __init__(self, limit: float, period: float = 1.0, sub_windows: int | None = 32) -> None:
        self.limit, self.period, self.sub_windows = limit, period, sub_windows
        self.window = Window()

    def take(self, now: float, cost: float = 1) -> bool:
        span = span_of(self.period, self.sub_windows, self.limit, cost)
        return self.window.take(cost, now, self.limit, self.period, span)

    def wait(self, now: float, cost: float = 1) -> float:
        return self.window.wait(cost, now, self.limit, self.period)

    def room(self, now: float) -> float:
        return self.window.room(now, self.limit, self.period)

    @property
    def entries(self) -> int:
        older = self.window.older
        held = 0 if older is None else (len(older) - self.window.first) // 2
        return held + (self.window.total > self.window.older_total)


def state(window: Window) -> tuple[object, ...]:
    plain = window.copy()  # without what has left
    return tuple(copy.copy(getattr(plain, name)) for name in Window.__slots__)


def twin(counter: Counter) -> Counter:
    other = Counter(counter.limit, counter.period, counter.sub_windows)
    other.window = counter.window.copy()
    return other


# What moves time on: nothing, a hair, parts of the period, just about it, and years.
PERIODS = st.sampled_from([1.0, 60.0, 0.25, 86400.0, 1.2999999999999998, 1e10, 0.1])
MOVES = st.one_of(
    st.just(0.0),
    st.floats(0, 0.1),
    st.floats(0, 3),
    st.sampled_from([1 / 32, 1 / 16, 1 / 3, 0.5, 0.95, 0.999999, 1.0, 1.0000001, 1e-12, 1e-300]),
    st.just(TEN_YEARS),
)
COSTS = st.one_of(
    st.just(1), st.integers(1, 12), st.sampled_from([0.125, 0.5, 2.75]), st.just(10**6)
)


@settings(max_examples=500)
@given(
    limit=st.one_of(st.integers(1, 12), st.integers(40, 60), st.sampled_from([2.5, 33.25])),
    period=PERIODS,
    sub_windows=st.one_of(st.none(), st.integers(1, 40)),
    start=st.sampled_from([0.0, 1e-300, 0.3, 1.7e9, 5e5 + 0.1]),
    steps=st.lists(st.tuples(MOVES, COSTS, st.integers(1, 30)), max_size=40),
)
@example(1, 1.0, 32, 0.0, [(0.0, 1, 1), (0.1, 1, 1), (0.9, 1, 1)])  # 0.1 + 0.9 and the like
@example(2, 1.0, 2, 0.0, [(0.0, 0.125, 8), (0.0625, 0.125, 1), (0.9375, 1, 1)])
def test_every_decision_against_the_definition(
    limit: float,
    period: float,
    sub_windows: int | None,
    start: float,
    steps: list[tuple[float, float, int]],
) -> None:
    counter = Counter(limit, period, sub_windows)
    log = ExactLog(period)
    exact = sub_windows is None or limit <= sub_windows
    joined = 0.0 if sub_windows is None else period / sub_windows
    now = start
    for move, cost, repeats in steps:
        now += move * period
        exact = exact and (sub_windows is None or cost >= 1)  # what costs less may share an entry
        for _ in range(repeats):
            before = twin(counter)
            fits = log.used(now) + Fraction(cost) <= limit
            admitted = counter.take(now, cost)
            if admitted:
                assert fits, "over the limit"
                log.admit(now, cost)
            else:
                # Only what an entry shares with a later admission may count a span too long.
                assert log.used(now, joined) + Fraction(cost) > limit
                assert not (fits and exact), "not an exact log"
                counter.room(now)
                before.room(now)
                assert state(counter.window) == state(before.window), "a refusal changed it"
                if cost <= limit:
                    _check_wait(counter, now, cost)
                break
        if sub_windows is not None and float(cost).is_integer():
            assert counter.entries <= max(limit, 1) + sub_windows + 2
    assert log.worst() <= limit


@given(
    start=st.floats(0, 1e6),
    period=PERIODS,
    limit=st.integers(1, 40),
    rounds=st.integers(1, 8),
)
def test_who_sleeps_what_it_is_told_keeps_the_limit_to_the_last_bit(
    start: float, period: float, limit: int, rounds: int
) -> None:
    counter = Counter(limit, period)
    times: list[Fraction] = []
    now = start
    for _ in range(rounds):
        while counter.take(now):
            times.append(Fraction(now))
        now += counter.wait(now)
    for end in times:
        assert sum(end - Fraction(period) < at <= end for at in times) <= limit


def _check_wait(counter: Counter, now: float, cost: float) -> None:
    wait = counter.wait(now, cost)
    assert 0 < wait <= math.nextafter(counter.period + (now + counter.period) * 1e-15, math.inf)
    assert twin(counter).take(now + wait, cost), "slept the whole wait in vain"
    if now + 0.95 * wait < now + wait:
        assert not twin(counter).take(now + 0.95 * wait, cost), "the wait was too long"


@settings(max_examples=200)
@given(
    limit=st.integers(33, 200),
    sub_windows=st.integers(1, 64),
    gaps=st.lists(st.floats(0, 0.01), min_size=1, max_size=50),
)
def test_entries_are_few_and_little_is_wasted(
    limit: int, sub_windows: int, gaps: list[float]
) -> None:
    counter = Counter(limit, 1.0, sub_windows)
    now, admitted = 0.0, 0
    while now < 8.0:
        for gap in gaps:
            now += gap + 1e-3
            admitted += counter.take(now)
            admitted += counter.take(now)
            admitted += counter.take(now)
            assert counter.entries <= min(limit, sub_windows + 2)
    asked = 3 * len(gaps) / (sum(gaps) + len(gaps) * 1e-3)  # a second
    expected = min(asked, limit) * sub_windows / (sub_windows + 1)
    assert admitted >= expected * now * 0.98 - limit


@pytest.mark.parametrize(
    ("sub_windows", "share"), [(10, 0.91), (16, 0.94), (32, 0.969), (60, 0.98)]
)
def test_under_saturation_most_of_the_limit_is_admitted(sub_windows: int, share: float) -> None:
    counter = Counter(1000, 1.0, sub_windows)
    admitted = sum(counter.take(step / 20_000) for step in range(20_000 * 20))
    assert share * 1000 * 20 <= admitted <= 1000 * 21


@given(
    first=st.integers(1, 10),
    lower=st.integers(0, 10),
    later=st.integers(0, 20),
    at=st.floats(0.01, 0.9),
)
def test_a_limit_that_changes_acts_on_the_next_decision(
    first: int, lower: int, later: int, at: float
) -> None:
    counter = Counter(10)
    for _ in range(first):
        assert counter.take(0.0)
    counter.limit = lower
    assert counter.take(at) == (first + 1 <= lower)
    counter.limit = 40 + later  # above the sub-windows: admissions join again
    while counter.take(at):
        pass
    assert counter.room(at) == 0
    assert counter.room(1.0) == first


@given(st.floats(0, 1e12), st.floats(1e-9, 1e9))
def test_seconds_until_is_exact(since: float, period: float) -> None:
    wait = seconds_until(since, since, period)
    assert Fraction(since + wait) - Fraction(since) >= Fraction(period)
    assert wait <= period + math.ulp(since + period) * 2 + math.ulp(period)


def test_the_minutes_edge() -> None:
    # 20/min: twenty just before the minute and twenty just after it, as in a fixed window's gap.
    counter = Counter(20, 60.0)
    assert sum(counter.take(59.0 + n / 128) for n in range(20)) == 20
    assert sum(counter.take(60.5 + n / 128) for n in range(20)) == 0
    assert counter.wait(60.7) == pytest.approx(59.0 + 60.0 - 60.7)
    assert sum(counter.take(119.0 + n / 128) for n in range(20)) == 20


def test_a_ring_of_five() -> None:
    # 5 a second, eight requests 100 ms apart: five pass, three do not, the ninth has a place.
    counter = Counter(5)
    assert [counter.take(n * 0.1) for n in range(8)] == [True] * 5 + [False] * 3
    assert counter.take(1.0)
    assert not counter.take(1.05)


def fullest_second(take: Callable[[float], bool], arrivals: list[float]) -> int:
    passed = [at for at in arrivals if take(at)]
    return max(sum(end - 1.0 < at <= end for at in passed) for end in passed)


# One second, a limit of 100, 200 requests between 0.95 s and 1.05 s: alone, and on top of an
# even load of 100 a second, of which what is dropped too early can be seen.
BURST = [0.95 + n * 0.0005 for n in range(200)]
LOAD = [0.005 + n * 0.01 for n in range(95)]


@pytest.mark.parametrize("sub_windows", [1, 2, 10, 32, 60, 100, 1000, None])
def test_burst_at_the_boundary(sub_windows: int | None) -> None:
    assert fullest_second(Counter(100, 1.0, sub_windows).take, BURST) == 100
    assert fullest_second(Counter(100, 1.0, sub_windows).take, LOAD + BURST) == 100


@pytest.mark.parametrize(
    ("make", "alone", "on_top"),
    [
        (lambda: FixedWindow(100, 1.0), 200, 195),
        (lambda: WholeSubWindows(100, 1.0, 10), 100, 110),
        (lambda: WholeSubWindows(100, 1.0, 100), 100, 101),
    ],
)
def test_burst_at_the_boundary_elsewhere(
    make: Callable[[], FixedWindow | WholeSubWindows], alone: int, on_top: int
) -> None:
    assert fullest_second(make().take, BURST) == alone
    assert fullest_second(make().take, LOAD + BURST) == on_top


@pytest.mark.parametrize("sub_windows", [1, 10, 32, 100, None])
def test_even_load(sub_windows: int | None) -> None:
    counter = Counter(100, 1.0, sub_windows)
    assert sum(counter.take(n / 100) for n in range(100)) == 100  # 100 a second pass
    counter = Counter(100, 1.0, sub_windows)
    log = ExactLog(1.0)
    for n in range(750):  # 150 a second for 5 s: never over
        if counter.take(n / 150):
            log.admit(n / 150, 1)
    assert log.worst() <= 100


def test_a_refusal_changes_nothing() -> None:
    counter = Counter(10)
    assert counter.take(0.0, 8)
    assert not counter.take(0.1, 5)
    assert counter.take(0.2, 1)


def test_an_admission_exactly_one_period_old_no_longer_counts() -> None:
    counter = Counter(1)
    assert counter.take(0.5)
    assert not counter.take(math.nextafter(1.5, 0))
    assert counter.take(1.5)


@pytest.mark.parametrize("period", [1.2999999999999998, 1e10, TEN_YEARS])
def test_odd_periods_and_long_idling(period: float) -> None:
    counter = Counter(1, period)
    now = 1.0
    for _ in range(5):
        assert counter.take(now)
        assert not counter.take(now + period * 0.999)
        now += period + TEN_YEARS
    assert counter.entries == 1


def test_a_clock_that_steps_back_refills_nothing_and_raises_nothing() -> None:
    counter = Counter(2)
    assert counter.take(100.0)
    assert counter.take(50.0)
    assert not counter.take(0.0)
    assert 0 < counter.wait(0.0) <= 1.0
    assert counter.take(101.0)


def test_give_back_goes_to_the_entry_it_came_from() -> None:
    counter = Counter(10)
    assert counter.take(0.0, 6)
    assert counter.take(0.5, 4)
    assert counter.window.give_back(2, at=0.5, now=0.6, period=1.0) == 2
    assert counter.room(0.6) == 2
    assert counter.room(1.0) == 8  # the six have left, the two that stay came at 0.5
    assert counter.window.give_back(9, at=0.5, now=1.1, period=1.0) == 2  # no more than it holds
    assert counter.window.give_back(5, at=0.0, now=1.1, period=1.0) == 0  # has left


def test_give_back_where_many_came_at_one_instant() -> None:
    counter = Counter(5, sub_windows=None)
    for _ in range(4):
        assert counter.take(1.0)
    assert counter.window.give_back(3, at=1.0, now=1.0, period=1.0) == 3
    assert counter.room(1.0) == 4


@settings(max_examples=300)
@given(
    sub_windows=st.one_of(st.none(), st.integers(1, 40)),
    limit=st.sampled_from([8, 50]),
    steps=st.lists(
        st.tuples(st.floats(0, 0.7), st.integers(1, 8), st.integers(0, 8), st.integers(0, 9)),
        max_size=30,
    ),
)
def test_give_back_never_frees_what_is_in_use(
    sub_windows: int | None, limit: int, steps: list[tuple[float, int, int, int]]
) -> None:
    counter = Counter(limit, 1.0, sub_windows)
    kept: list[list[float]] = []
    now = 0.0
    for move, cost, back, which in steps:
        now += move
        if counter.take(now, cost):
            kept.append([now, cost])
        if kept and back:
            chosen = kept[which % len(kept)]
            given = counter.window.give_back(min(back, chosen[1]), chosen[0], now, 1.0)
            chosen[1] -= min(back, chosen[1]) if given else 0
        in_use = sum(cost for at, cost in kept if now - 1.0 < at)
        assert limit - counter.room(now) >= in_use
        assert in_use <= limit


def test_a_copy_is_apart() -> None:
    counter = Counter(3)
    counter.take(0.0)
    counter.take(0.5)
    other = twin(counter)
    assert other.take(0.6)
    assert counter.room(0.6) == 1
    assert other.room(0.6) == 0


def test_compacting_a_long_log() -> None:
    counter = Counter(500, 1.0, None)
    log = ExactLog(1.0)
    for n in range(3000):
        now = n / 400
        assert counter.take(now) == (log.used(now) < 500)
        log.admit(now, 1)
    older = counter.window.older
    assert older is not None
    assert len(older) < 4 * 500


def test_window_is_plain_data() -> None:
    with pytest.raises((TypeError, AttributeError)):
        Window().unknown = 1  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(Window())).total == 0
