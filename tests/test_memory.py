"""The store: one verb, eviction, overflow, and what happens when periods change."""

from fractions import Fraction
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiolimit.memory import OVERFLOW, MemoryStore
from aiolimit.rate import Rate
from tests.oracle import ExactLog


def store(*rates: str, **options: float | None) -> MemoryStore:
    return MemoryStore(tuple(Rate.parse(rate) for rate in rates), **options)  # type: ignore[arg-type]


def take(table: MemoryStore, key: object, now: float, cost: float = 1) -> bool:
    limits = tuple(rate.limit for rate in table.rates)
    home = table.home(key, now)
    return table.take(home, cost, cost, limits, now)[0] > 0


def evict_all(table: MemoryStore, now: float, most: int = 1000) -> float | None:
    while (again := table.evict(now, most)) == 0.0:
        pass
    return again


@settings(max_examples=300)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from([0.0, 0.01, 0.1, 0.25, 0.9, 1.0, 3.0]), st.integers(1, 5)),
        max_size=60,
    ),
    burst=st.sampled_from([None, 2, 4]),
)
def test_several_rates_all_or_nothing(steps: list[tuple[float, int]], burst: float | None) -> None:
    table = store("4/s", "7/2s", burst=burst)
    logs = [ExactLog(1.0), ExactLog(2.0)]
    now = 0.0
    for move, cost in steps:
        now += move
        room = [limit - log.used(now) for limit, log in zip((4, 7), logs, strict=True)]
        granted, wait = table.take("k", cost, cost, (4, 7), now)
        if granted:
            assert cost <= min(room)
            for log in logs:
                log.admit(now, cost)
        elif cost <= (burst or 4):
            assert wait > 0
            if burst is None:
                assert cost > min(room)
            again, _ = table.take("k", cost, cost, (4, 7), now + wait)
            assert again == cost
            for log in logs:
                log.admit(now + wait, cost)
            now += wait


def test_take_up_to() -> None:
    table = store("10/s", "15/min")
    assert table.take("k", 8, 8, (10, 15), 0.0) == (8, 0.0)
    assert table.take("k", 5, 3, (10, 15), 0.0) == (0, 1.0)
    assert table.take("k", 5, 2, (10, 15), 0.0) == (2, 0.0)
    assert table.take("k", 9, 1, (10, 15), 1.0) == (5, 0.0)
    assert table.take("k", 0, 1, (10, 15), 1.0) == (0, 59.0)
    assert table.take("k", 0, 31, (10, 15), 1.0)[1] == pytest.approx(3 * 60 - 1)


def test_a_rate_that_does_not_apply_is_neither_asked_nor_charged() -> None:
    table = store("2/s", "3/min")
    for _ in range(3):
        assert table.take("k", 1, 1, (None, 3), 0.0)[0]
    assert not table.take("k", 1, 1, (None, 3), 0.0)[0]
    assert table.take("k", 1, 1, (2, None), 0.0)[0]
    assert table.take("k", 0, 1, (None, None), 0.0) == (0, 0.0)


def test_giving_back_leaves_the_rates_alone_that_were_not_charged() -> None:
    table = store("5/s", "5/min")
    table.take("k", 3, 3, (5, 5), 0.0)
    table.take("k", 2, 2, (None, 5), 0.0)
    assert table.take("k", -2, 0, (None, 5), 0.0, 0.0) == (-2, 0.0)
    looks = table.look("k", 1, (5, 5), 0.0)
    assert [look.remaining for look in looks if look] == [2, 2]


@pytest.mark.parametrize("most", [1, 7, 1000])
def test_idle_keys_go_and_no_others(most: int) -> None:
    table = store("5/s")
    for key in range(100):
        take(table, key, key / 200)
    again = evict_all(table, 1.25, most) or 0  # the first fifty-one are idle
    assert len(table) == 49
    assert table.evicted == 51
    assert again == pytest.approx(99 / 200 + 1 - 1.25)
    assert evict_all(table, 1.25 + again, most) is None
    assert len(table) == 0


def test_a_step_looks_at_no_more_keys_than_it_may() -> None:
    table = store("5/s")
    for key in range(100):
        take(table, key, 0.0)
    assert table.evict(5.0, 10) == 0.0
    assert len(table) == 90


def test_a_key_in_its_window_is_never_evicted() -> None:
    table = store("2/s", "3/min", burst=2)
    assert take(table, "k", 0.0)
    assert evict_all(table, 59.9) == pytest.approx(0.1)
    assert take(table, "k", 59.9)
    assert evict_all(table, 60.0) == pytest.approx(59.9)
    assert len(table) == 1


def test_what_is_ahead_of_its_pace_is_kept_until_it_is_not() -> None:
    table = store("10/s", burst=5)
    table.take("k", 50, 50, (inf,), 0.0)  # charged past the limit, as `adjust` may
    assert evict_all(table, 2.0) == pytest.approx(3.0)
    assert not take(table, "k", 2.0)
    assert evict_all(table, 5.0) is None


def test_keys_past_the_bound_share_one_window() -> None:
    table = store("3/s", max_keys=2)
    assert all(take(table, "a", 0.0) for _ in range(3))
    assert take(table, "b", 0.0)
    assert table.home("c", 0.0) is OVERFLOW
    assert [take(table, key, 0.0) for key in "cdefg"] == [True, True, True, False, False]
    assert len(table) == 2
    assert not take(table, "a", 0.5), "spraying keys frees nobody"
    assert take(table, "b", 0.5)
    assert not take(table, "c", 0.5)
    assert take(table, "c", 1.0)


def test_whoever_leaves_the_overflow_takes_along_what_it_may_have_used() -> None:
    table = store("3/s", max_keys=1)
    assert take(table, "a", 0.0)
    assert all(take(table, "b", 0.5) for _ in range(3))
    # "a" is idle at 1.0, so "b" gets a window of its own; it has used three at 0.5.
    assert not take(table, "b", 1.0)
    assert len(table) == 1
    assert "b" in table
    assert take(table, "b", 1.5)
    assert evict_all(table, 10.0) is None
    assert all(take(table, "fresh", 10.0) for _ in range(3))


@settings(max_examples=200)
@given(
    max_keys=st.integers(1, 4),
    calls=st.lists(
        st.tuples(st.sampled_from([0.0, 0.1, 0.4, 1.0]), st.sampled_from("abcdef")), max_size=80
    ),
)
def test_no_key_is_ever_over_however_few_are_kept(
    max_keys: int, calls: list[tuple[float, str]]
) -> None:
    table = store("3/s", max_keys=max_keys)
    logs = {key: ExactLog(1.0) for key in "abcdef"}
    now = 0.0
    for move, key in calls:
        now += move
        if take(table, key, now):
            logs[key].admit(now, 1)
        assert len(table) <= max_keys
        if move == 0.4:
            table.evict(now, 1)
    assert all(log.worst() <= 3 for log in logs.values())


@settings(max_examples=200)
@given(
    changes=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.3, 1.0]),
            st.sampled_from([("4/s",), ("9/3s",), ("4/s", "9/3s"), ("9/3s", "4/s"), ("2/500ms",)]),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_changing_the_periods_forgets_nothing_that_counts(
    changes: list[tuple[float, tuple[str, ...], bool]],
) -> None:
    table = store("4/s")
    kept: list[Fraction] = []
    now = 0.0
    for move, rates, step in changes:
        now += move
        table.change(tuple(Rate.parse(rate) for rate in rates))
        if step:
            table.evict(now, 1)
        admitted = 0
        while take(table, "k", now):
            kept.append(Fraction(now))
            admitted += 1
        # Every layout remembers at least half a second.
        recent = sum(Fraction(now) - Fraction(1, 2) < at for at in kept)
        assert admitted == 0 or recent <= min(rate.limit for rate in table.rates)


def test_moving_house_in_steps() -> None:
    table = store("5/s")
    for key in range(10):
        for _ in range(5):
            take(table, key, 0.0)
    table.change((Rate(5), Rate(100, per=60)))
    assert len(table) == 10
    assert 3 in table
    assert not take(table, 3, 0.5)
    assert table.evict(0.5, 4) == 0.0
    assert len(table) == 10
    assert not take(table, 4, 0.5)
    assert evict_all(table, 0.5) is not None
    looks = table.look(5, 1, (5, 100), 0.5)
    assert [look.remaining for look in looks if look] == [0, 95]
    assert evict_all(table, 61.0) is None


def test_forgetting() -> None:
    table = store("1/s")
    assert take(table, "a", 0.0)
    assert take(table, "b", 0.0)
    table.forget("a")
    table.forget("never seen")
    assert take(table, "a", 0.0)
    assert not take(table, "b", 0.0)
    table.clear()
    assert len(table) == 0
    assert take(table, "b", 0.0)


def test_what_was_taken_before_a_key_was_forgotten_cannot_be_given_back() -> None:
    table = store("3/s")
    table.take("k", 2, 2, (3,), 0.0)
    table.forget("k")
    table.take("k", 3, 3, (3,), 0.5)
    assert table.take("k", -2, 0, (3,), 0.6, 0.0) == (0, 0.0)
    assert not take(table, "k", 0.6)
