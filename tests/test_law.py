"""The law of load control: by itself, and on a simulated event loop, with arms that must fail."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiolimit.load.law import LoadState, Sample, Targets, advance, factor
from tests.simulation import (
    AcquireOnly,
    Controlled,
    Protection,
    Service,
    SimulatedLoop,
    ceiling,
    simulate,
)

TARGETS = Targets()


def steps(state: LoadState, count: int, **what: Any) -> LoadState:
    """So many steps of a quarter of a second, all alike."""
    for _ in range(count):
        sample = Sample(at=max(0.0, state.at) + 0.25, seconds=0.25, **what)
        state = advance(state, sample, TARGETS)
    return state


BUSY = {"cpu": 0.245, "admitted": 45, "completed": 45, "refused": 400, "shortest": 0.025}


# --- the law by itself ---------------------------------------------------------------------------


def test_before_anything_is_known() -> None:
    state = LoadState()
    assert (state.cost, state.rate, state.cap) == (None, inf, 20)
    state = steps(state, 5, cpu=0.001, admitted=1, completed=1, shortest=0.01)
    assert (state.cost, state.rate, state.cap) == (None, inf, 20)


def test_cost_rate_and_cap_of_a_steady_load() -> None:
    state = steps(LoadState(), 40, cpu=0.1, admitted=20, completed=20, shortest=0.025)
    assert state.cost == pytest.approx(0.005)
    assert state.share == 1.0
    # (1 * 0.97 - 50 us * 80/s) / (5 ms - 50 us), and that times 25 + 100 ms.
    assert state.rate == pytest.approx((0.97 - 50e-6 * 80) / (0.005 - 50e-6))
    assert state.cap == 25
    assert state.busy == pytest.approx(0.4)
    assert not state.refusing


def test_the_queue_is_shorter_while_refusing_and_for_a_second_after() -> None:
    calm = {"cpu": 0.2, "admitted": 40, "completed": 40, "shortest": 0.025}
    state = steps(steps(LoadState(), 20, **calm), 4, **BUSY)
    assert state.refusing
    assert state.queue == 0.05
    state = steps(state, 4, **calm)
    assert state.refusing
    state = steps(state, 1, **calm)
    assert not state.refusing
    assert state.queue == 0.1


def test_the_cost_of_a_refusal_is_learnt_and_kept_in_bounds() -> None:
    state = LoadState()
    for step in range(200):
        refused = 100 + 700 * (step % 2)
        cpu = 0.005 * 20 + 80e-6 * refused
        sample = Sample(0.25 * step, 0.25, cpu, admitted=20, completed=20, refused=refused)
        state = advance(state, sample, TARGETS)
    assert state.refusal_cost == pytest.approx(80e-6, rel=0.02)
    assert state.cost == pytest.approx(0.005, rel=0.02)
    most = steps(state, 100, cpu=0.25, refused=200)  # they cannot cost that much
    assert most.refusal_cost == pytest.approx(500e-6)
    least = LoadState()
    for step in range(200):
        admitted = 40 * (step % 2)
        sample = Sample(0.25 * step, 0.25, 0.005 * admitted, admitted=admitted, refused=500)
        least = advance(least, replace(sample, completed=admitted), TARGETS)
    assert least.refusal_cost == pytest.approx(0.0, abs=1e-6)


def test_the_shortest_time_is_frozen_while_refusing() -> None:
    state = steps(LoadState(), 8, **{**BUSY, "refused": 0})
    for _ in range(400):  # 100 s of overload in which everything takes longer
        state = steps(state, 1, **{**BUSY, "shortest": 0.4})
    assert state.shortest == 0.025
    calm = {"cpu": 0.2, "admitted": 40, "completed": 40, "shortest": 0.08}
    state = steps(state, 36, **calm)
    assert state.shortest == 0.025  # until two buckets of ten seconds have gone by
    state = steps(state, 60, **calm)
    assert state.shortest == 0.08
    assert steps(state, 1, **{**calm, "shortest": 0.01}).shortest == 0.01


def test_a_share_of_a_core_by_waiting_for_it() -> None:
    state = steps(LoadState(), 40, cpu=0.125, waited=0.125, admitted=25, completed=25)
    assert state.share == pytest.approx(0.5, rel=0.01)
    assert state.cost == pytest.approx(0.005)
    assert state.rate == pytest.approx(97, rel=0.03)
    assert state.busy == pytest.approx(1.0, rel=0.01)


def test_a_share_of_a_core_by_quota() -> None:
    state = steps(LoadState(), 40, cpu=0.05, quota=0.2, admitted=10, completed=10)
    assert state.share == 0.2
    state = steps(state, 1, cpu=0.05, quota=0.0, admitted=10, completed=10)
    assert state.share == 0.05  # never nothing


def test_blocking_counts_like_work() -> None:
    state = steps(LoadState(), 40, cpu=0.02, blocked=0.2, admitted=10, completed=10)
    assert state.cost == pytest.approx(0.022)


def test_completions_that_come_all_at_once_do_not_make_requests_cheap() -> None:
    state = steps(LoadState(), 20, cpu=0.1, admitted=20, completed=20)
    for _ in range(20):  # an uncontrolled overload: iterations of seconds
        state = steps(state, 9, cpu=0.25, admitted=50, completed=0)
        state = steps(state, 1, cpu=0.25, admitted=50, completed=500)
    assert state.cost == pytest.approx(0.005, rel=0.25)


def test_pressure_ends_the_stretch() -> None:
    mixed = {"cpu": 0.05, "admitted": 10, "completed": 10, "shortest": 0.001, "capped": 5}
    state = steps(LoadState(), 100, **mixed, refused=5)
    assert state.stretch == 64
    state = steps(state, 100, **mixed, refused=5, pressures={"pool": 1.1})
    assert state.stretch == 1


def test_an_idle_minute_teaches_nothing() -> None:
    state = steps(LoadState(), 40, cpu=0.2, admitted=40, completed=40, shortest=0.02)
    idle = steps(state, 240, cpu=0.0001)
    assert idle.cost == pytest.approx(state.cost, rel=0.01)
    one = steps(idle, 1, cpu=0.1, admitted=1, completed=1)  # a request that loads a module
    assert one.cost == pytest.approx(state.cost, rel=0.01)


def test_a_full_cap_grows_while_the_cpu_is_idle() -> None:
    mixed = {"cpu": 0.05, "admitted": 10, "completed": 10, "shortest": 0.001}
    state = steps(LoadState(), 20, **mixed)
    before = state.cap
    state = steps(state, 10, **mixed, refused=5, capped=5)
    assert state.cap > 3 * before
    state = steps(state, 100, **mixed, refused=5, capped=5)
    assert state.stretch == 64
    state = steps(state, 30, cpu=0.249, admitted=50, completed=50)
    assert state.stretch == 1


def test_pressure_is_a_fixed_map() -> None:
    assert [factor(p) for p in (0, 0.5, 1.0, 1.1875, 2, inf)] == [1, 1, 1, 0.2, 0.2, 0.2]
    assert factor(0.875 / 0.8) == pytest.approx(0.6)
    state = steps(LoadState(), 20, cpu=0.1, admitted=20, completed=20, shortest=0.025)
    pressed = steps(
        state, 1, cpu=0.1, admitted=20, completed=20, pressures={"memory": 0.95 / 0.8, "gc": 1.1}
    )
    assert pressed.binding == "memory"  # the highest, and it alone
    assert pressed.factor == pytest.approx(0.2)
    assert pressed.rate == pytest.approx(0.2 * state.rate, rel=0.01)
    assert pressed.cap == 5
    # Never integrated: an hour of it is no worse than a second, and it is over at once.
    lasting = steps(pressed, 1000, cpu=0.1, admitted=20, completed=20, pressures={"memory": 1.1875})
    assert lasting.cap == 5
    free = steps(lasting, 1, cpu=0.1, admitted=20, completed=20)
    assert (free.cap, free.binding) == (25, "cpu")


def test_blind_it_holds_and_then_opens() -> None:
    state = steps(LoadState(), 20, cpu=0.1, admitted=20, completed=20, shortest=0.025)
    held = steps(state, 20, cpu=None, admitted=20, completed=20)
    assert (held.blind, held.rate, held.cap) == (5.0, state.rate, state.cap)
    opened = steps(held, 4, cpu=None)
    assert opened.rate == pytest.approx(1.05 * state.rate, rel=0.002)
    opened = steps(opened, 4 * 59, cpu=None)
    assert opened.rate == pytest.approx(1.05**60 * state.rate, rel=0.05)
    seeing = steps(opened, 1, cpu=0.1, admitted=20, completed=20)
    assert (seeing.blind, seeing.cap) == (0, 25)


def test_a_change_of_the_cost_is_told() -> None:
    state = steps(LoadState(), 20, cpu=0.1, admitted=20, completed=20)
    assert state.change is None
    state = steps(state, 100, cpu=0.2, admitted=20, completed=20)
    assert state.change is not None
    assert state.change.what == "cost"
    assert state.change.before < state.change.after <= 0.0101


def test_a_trace_replays_every_decision() -> None:
    trace: list[tuple[Sample, LoadState]] = []
    controlled: list[Controlled] = []

    def protect(loop: SimulatedLoop) -> Protection:
        one = Controlled(loop)
        take, known = one.controller._sampling.take, one.controller

        def record(*given: Any) -> Sample | None:
            sample = take(*given)
            if sample is not None:
                trace.append((sample, known.state))
            return sample

        one.controller._sampling.take = record  # type: ignore[method-assign,assignment]
        controlled.append(one)
        return one

    simulate(protect, 5, seconds=6)
    state = trace[0][1]
    for sample, before in pickle.loads(pickle.dumps(trace)):
        assert before == state
        state = advance(state, sample, TARGETS)
    assert state == controlled[0].controller.state
    assert len(trace) > 10


def test_a_freeze_teaches_nothing() -> None:
    state = steps(LoadState(), 40, cpu=0.1, admitted=20, completed=20, shortest=0.025)
    frozen = advance(state, Sample(state.at + 10, 10.0, 10.0, admitted=1, completed=1), TARGETS)
    assert frozen.cost == state.cost


def test_the_pace_of_an_idle_process_grows_until_nobody_is_refused() -> None:
    loop = SimulatedLoop()
    protection = AcquireOnly(loop)
    service = Service(loop, protection, **A)
    service.offer(100, 0.0, 30.0)
    loop.call_later(5.0, lambda: loop.burn(1.9))  # one step that makes calls look dear
    loop.run(15.0)
    before = service.outcome.refused
    loop.run(31.0)
    assert service.outcome.refused - before < 20


def test_hours_without_a_measure() -> None:
    state = steps(LoadState(), 20, cpu=0.1, admitted=20, completed=20, shortest=0.025)
    state = advance(state, Sample(state.at + 1e6, 1e6, None), TARGETS)
    assert state.rate < inf


@given(
    st.lists(
        st.builds(
            Sample,
            at=st.just(0.0),
            seconds=st.floats(0.001, 10),
            cpu=st.none() | st.floats(0, 10),
            blocked=st.floats(0, 10),
            waited=st.floats(0, 10),
            quota=st.floats(0, 100) | st.just(inf),
            admitted=st.integers(0, 10**5),
            completed=st.integers(0, 10**5),
            refused=st.integers(0, 10**6),
            capped=st.integers(0, 10**5),
            shortest=st.floats(0, 1e4) | st.just(inf),
            oldest=st.floats(0, 1e5),
            pressures=st.dictionaries(st.sampled_from("abc"), st.floats(0, 1e3)),
        ),
        max_size=30,
    )
)
def test_whatever_is_seen_something_is_let_in(samples: list[Sample]) -> None:
    state, at = LoadState(), 0.0
    for sample in samples:
        at += sample.seconds
        state = advance(state, replace(sample, at=at), TARGETS)
        assert state.cap >= 1
        assert state.rate > 0
        assert 0.05 <= state.share <= 1
        assert 0.2 <= state.factor <= 1
        assert 0 <= state.refusal_cost <= 500e-6
        assert state.cost is None or state.cost > 0
        assert nan not in (state.cap, state.rate)


# --- on a simulated loop -------------------------------------------------------------------------

A: dict[str, Any] = {"cpu": 0.005, "io": 0.020}
B: dict[str, Any] = {"cpu": 0.001, "io": 0.005}
C: dict[str, Any] = {"cpu": 0.020, "io": 0.0}


@pytest.mark.parametrize("load", [2, 5, 10])
@pytest.mark.parametrize(
    ("service", "least"),
    [
        (A, 0.97),
        ({**A, "io_first": True}, 0.75),  # here all want the CPU at the very same time
        ({**A, "io_first": True, "jitter": 0.1}, 0.95),
        (B, 0.97),
        ({**B, "io_first": True}, 0.97),
        (C, 0.97),
        ({**A, "seed": 7}, 0.97),
    ],
    ids=["A", "A-io-first", "A-io-first-jitter", "B", "B-io-first", "C", "A-other-seed"],
)
def test_goodput_under_overload(service: dict[str, Any], least: float, load: float) -> None:
    share, run, _ = simulate(Controlled, load, **service)
    assert share >= least
    latencies = sorted(run.outcome.latencies)
    assert latencies[int(0.99 * len(latencies))] <= 0.4
    assert run.outcome.late <= 0.01 * len(latencies)


@pytest.mark.parametrize("service", [A, B], ids=["A", "B"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nobody_is_refused_below_capacity(service: dict[str, Any], seed: int) -> None:
    share, run, _ = simulate(Controlled, 0.8, seconds=20, seed=seed, **service)
    assert run.outcome.refused == 0
    assert share > 0.95


@pytest.mark.parametrize("io", [0.1, 0.2])
@pytest.mark.parametrize("load", [2, 5])
def test_callers_who_wait_together_and_then_want_the_cpu_together(io: float, load: float) -> None:
    share, run, protection = simulate(Controlled, load, cpu=0.005, io=io, io_first=True, jitter=0.1)
    assert share >= 0.9
    assert run.outcome.late <= 0.06 * len(run.outcome.latencies)  # all when the load comes
    assert protection.controller.state.stretch < 2


@pytest.mark.parametrize("load", [2, 10])
@pytest.mark.parametrize("service", [A, B, C], ids=["A", "B", "C"])
def test_it_settles_within_a_second(service: dict[str, Any], load: float) -> None:
    _, run, _ = simulate(Controlled, load, **service)
    best = ceiling(run, load) * run.capacity
    assert run.outcome.goodput(2, 3) >= 0.85 * best  # the first second of the load
    assert run.outcome.goodput(3, 4) >= 0.9 * best


def cold(protect: Callable[[SimulatedLoop], Protection], load: float, **service: Any) -> Service:
    """The load from the very first moment."""
    loop = SimulatedLoop()
    run = Service(loop, protect(loop), **service)
    run.offer(load * run.capacity, 0.0, 6.0)
    loop.run(7.0)
    return run


@pytest.mark.parametrize("service", [A, {**A, "io_first": True}, B, C])
def test_a_cold_start_into_the_overload(service: dict[str, Any]) -> None:
    run = cold(Controlled, 10, **service)
    assert run.outcome.goodput(1, 6) >= 0.83 * ceiling(run, 10) * run.capacity


def test_half_the_capacity() -> None:
    loop = SimulatedLoop()
    service = Service(loop, Controlled(loop), **A)
    rate = 2 * service.capacity
    service.offer(rate, 0.0, 12.0)

    def slower() -> None:
        service.cpu = 0.010

    loop.call_later(6.0, slower)
    loop.run(13.0)
    assert service.outcome.goodput(2, 6) >= 0.95 * 200
    assert service.outcome.goodput(8, 12) >= 0.95 * 100
    assert service.outcome.goodput(6, 8) >= 0.7 * 100


def test_minutes_of_overload_do_not_wear_it_out() -> None:
    share, run, protection = simulate(Controlled, 3, seconds=180, **A)
    assert share >= 0.97
    best = ceiling(run, 3) * run.capacity
    assert run.outcome.goodput(150, 180) >= 0.97 * best
    assert protection.controller.state.shortest < 0.03


def test_it_recovers() -> None:
    loop = SimulatedLoop()
    protection = Controlled(loop)
    service = Service(loop, protection, **A)
    service.offer(10 * service.capacity, 0.0, 6.0)
    service.offer(0.6 * service.capacity, 6.0, 12.0)
    loop.run(8.0)
    refused = service.outcome.refused
    loop.run(13.0)
    assert service.outcome.refused == refused
    assert service.outcome.goodput(8, 12) >= 0.55 * service.capacity


@pytest.mark.parametrize("load", [2, 10])
def test_noise(load: float) -> None:
    def noisy(loop: SimulatedLoop) -> Protection:
        return Controlled(loop, noise=0.01)  # two readings of the clock, 10 ms off

    loop = SimulatedLoop()
    protection = noisy(loop)
    service = Service(loop, protection, **A)
    service.jitter = 1.0  # exponential, both CPU and I/O
    service.offer(load * service.capacity, 0.0, 12.0)
    loop.run(13.0)
    assert service.outcome.goodput(2, 12) >= 0.9 * ceiling(service, load) * service.capacity


def test_half_a_core() -> None:
    loop = SimulatedLoop()
    loop.share = 0.5
    protection = Controlled(loop)
    service = Service(loop, protection, **A)
    service.offer(2 * service.capacity, 0.0, 12.0)
    loop.run(13.0)
    assert protection.controller.state.share == pytest.approx(0.5, rel=0.02)
    assert service.outcome.goodput(2, 12) >= 0.93 * service.capacity / 2


def test_a_driver_that_blocks() -> None:
    # 1 ms CPU and 9 ms in a synchronous call: it can do 100 a second, not 1000.
    share, run, protection = simulate(Controlled, 3, cpu=0.001, io=0.0, blocks=0.009)
    assert share >= 0.95
    assert protection.controller.state.cost == pytest.approx(0.010, rel=0.1)
    assert run.outcome.late == 0


def test_mixed_requests_are_not_refused_while_the_cpu_is_idle() -> None:
    # Every second one waits 2 s for something else; the shortest time says 2 ms.
    loop = SimulatedLoop()
    protection = Controlled(loop)
    quick = Service(loop, protection, cpu=0.001, io=0.001, seed=1)
    slow = Service(loop, protection, cpu=0.001, io=2.0, seed=2)
    quick.offer(200, 0.0, 20.0)
    slow.offer(200, 0.0, 20.0)
    loop.run(6.0)
    before = quick.outcome.refused + slow.outcome.refused
    loop.run(23.0)
    assert quick.outcome.refused + slow.outcome.refused == before
    assert protection.controller.state.busy < 0.6


def test_streams_that_stay_for_minutes_take_no_place() -> None:
    loop = SimulatedLoop()
    protection = Controlled(loop)
    streams = Service(loop, protection, cpu=0.001, io=600.0, seed=1)
    requests = Service(loop, protection, **A, seed=2)
    streams.offer(10, 0.0, 60.0)
    requests.offer(100, 0.0, 60.0)
    loop.run(61.0)
    assert requests.outcome.refused == 0
    assert streams.outcome.refused == 0
    assert protection.gate.in_flight < 40
    assert protection.controller.state.shortest < 0.03


@pytest.mark.parametrize(("load", "least"), [(2, 0.9), (5, 0.88), (10, 0.85)])
@pytest.mark.parametrize("service", [A, C], ids=["A", "C"])
def test_callers_who_only_acquire(service: dict[str, Any], load: float, least: float) -> None:
    share, _, _ = simulate(AcquireOnly, load, **service)
    assert share >= least


# --- ablations: what must fail, or the simulation has no teeth -----------------------------------


class FixedRate(Protection):
    """A token bucket at exactly the capacity."""

    def __init__(self, loop: SimulatedLoop, rate: float) -> None:
        self.rate, self.burst = rate, 0.05 * rate
        self.tokens, self.at = self.burst, 0.0

    def admit(self, now: float) -> bool:
        self.tokens = min(self.burst, self.tokens + (now - self.at) * self.rate)
        self.at = now
        return self.tokens >= 1

    def enter(self, _now: float) -> None:
        self.tokens -= 1


class GateOnly(Controlled):
    """Without the cap."""

    def admit(self, now: float) -> bool:
        return self.gate.obstacle(now, holds=True) != "iteration"


class Heartbeat(Protection):
    """Refuses while the last beat of a timer was late: the usual way to measure lag."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop, self.late, self.due = loop, 0.0, 0.0
        self.beat()

    def beat(self) -> None:
        self.late = self.loop.now - self.due
        self.due = self.loop.now + 0.05
        self.loop.call_later(0.05, self.beat)

    def admit(self, _now: float) -> bool:
        return self.late < 0.1


@pytest.mark.parametrize(
    ("protect", "load", "service"),
    [
        (lambda _loop: Protection(), 2, A),
        (lambda _loop: Protection(), 10, A),
        (lambda loop: FixedRate(loop, 199), 10, A),
        (Heartbeat, 10, A),
        (GateOnly, 10, {**A, "io_first": True}),
    ],
    ids=[
        "nothing-2x",
        "nothing-10x",
        "rate-C-10x",
        "heartbeat-10x",
        "no-cap",
    ],
)
def test_what_must_fail(
    protect: Callable[[SimulatedLoop], Protection], load: float, service: dict[str, Any]
) -> None:
    share, _, _ = simulate(protect, load, **service)
    assert share < 0.6
