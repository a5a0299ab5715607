"""The pacer against its definition."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from aiolimit.pacer import Pacer
from tests.oracle import ExactPace

TEN_YEARS = 10 * 365.25 * 86400
RATES = st.sampled_from([1.0, 10.0, 0.7692307692307693, 1e-10, 1e6, 20 / 60, 1 / 3])


@settings(max_examples=400)
@given(
    burst=st.sampled_from([1, 2, 5, 10.5]),
    start=st.sampled_from([0.0, 0.3, 1.7e9]),
    steps=st.lists(
        st.tuples(
            st.one_of(st.just(0.0), st.floats(0, 5), st.just(TEN_YEARS)),
            st.sampled_from([1, 1, 1, 2, 0.25, 5]),
            RATES,
            st.integers(1, 6),
        ),
        max_size=30,
    ),
)
def test_every_decision_against_the_definition(
    burst: float, start: float, steps: list[tuple[float, float, float, int]]
) -> None:
    pacer, exact = Pacer(), ExactPace()
    now = start
    for move, cost, rate, repeats in steps:
        now += move / rate
        for _ in range(repeats):
            ahead = exact.ahead_at(now, rate)
            # Rounding of a rate or of a late clock may tip the scales, nothing more.
            grain = Fraction(1e-9) + Fraction(now) * Fraction(rate) * Fraction(1e-15)
            wait = pacer.wait(cost, now, rate, burst)
            if wait == 0:
                assert ahead + Fraction(cost) <= Fraction(burst) + grain
                assert abs(pacer.room(now, rate, burst) - (burst - float(ahead))) <= grain
                pacer.take(cost, now, rate)
                exact.admit(now, cost, rate)
            else:
                assert ahead + Fraction(cost) >= Fraction(burst) - grain
                if cost <= burst:
                    assert pacer.wait(cost, now + wait, rate, burst) == 0, "slept in vain"
                    earlier = now + 0.95 * wait
                    if float(grain) < 0.01 * wait * rate:
                        assert pacer.wait(cost, earlier, rate, burst) > 0, "the wait was too long"
                break


def test_an_even_pace_after_the_burst() -> None:
    pacer = Pacer()
    passed = []
    for tick in range(400):
        now = tick / 128
        if pacer.wait(1, now, 16.0, 2) == 0:
            pacer.take(1, now, 16.0)
            passed.append(tick)
    assert passed[:3] == [0, 1, 8]  # two at once, as near as the ticks are, and then every eighth
    assert passed[3:] == list(range(16, 400, 8))


def test_a_higher_rate_shortens_what_is_owed() -> None:
    pacer = Pacer()
    pacer.take(5, 0.0, 1.0)
    assert pacer.wait(1, 0.0, 1.0, 1) == 5.0
    assert pacer.wait(1, 0.0, 10.0, 1) == 0.5


def test_a_queue_leaves_at_the_rate() -> None:
    pacer = Pacer()
    assert pacer.wait(21, 100.0, 2.0, 1) == 10.0
    pacer.take(1, 100.0, 2.0)
    assert pacer.wait(20, 100.0, 2.0, 1) == 10.0


def test_more_may_be_charged_than_the_burst_and_is_waited_out() -> None:
    pacer = Pacer()
    pacer.take(30, 0.0, 10.0)
    assert pacer.room(0.0, 10.0, 5) == -25
    assert pacer.wait(1, 0.0, 10.0, 5) == 2.6
    pacer.give_back(28, at=0.0, now=0.0, rate=10.0, fastest=10.0)
    assert pacer.wait(1, 0.0, 10.0, 5) == 0
    pacer.give_back(28, at=0.0, now=0.0, rate=10.0, fastest=10.0)
    assert pacer.room(0.0, 10.0, 5) == 5  # never more than nothing ahead


def test_what_has_drained_cannot_be_given_back() -> None:
    pacer = Pacer()
    pacer.take(5, 0.0, 10.0)
    pacer.take(5, 0.5, 10.0)
    pacer.give_back(5, at=0.0, now=0.5, rate=10.0, fastest=10.0)
    assert pacer.room(0.5, 10.0, 5) == 0
    pacer.give_back(5, at=0.5, now=0.6, rate=10.0, fastest=10.0)
    assert pacer.room(0.6, 10.0, 5) == 5


def test_a_clock_that_steps_back_drains_nothing() -> None:
    pacer = Pacer()
    pacer.take(5, 1000.0, 1.0)
    assert pacer.wait(1, 0.0, 1.0, 5) == 1.0
    assert pacer.room(0.0, 1.0, 5) == 0


def test_a_rate_of_nothing_lets_nothing_past_the_burst() -> None:
    pacer = Pacer()
    pacer.take(1, 0.0, 0.0)
    assert pacer.wait(1, 1e12, 0.0, 1) == float("inf")


def test_empty_after() -> None:
    pacer = Pacer()
    assert pacer.empty_after(0.0, 1.0) == 0
    pacer.take(3, 0.0, 2.0)
    assert pacer.empty_after(0.5, 2.0) == 1.0
    other = pacer.copy()
    other.take(1, 0.5, 2.0)
    assert pacer.empty_after(0.5, 2.0) == 1.0
    assert other.empty_after(0.5, 2.0) == 1.5
