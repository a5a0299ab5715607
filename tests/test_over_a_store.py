"""What holds for a limiter holds for one that shares its counts: the same tests, over a store."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.engines import Engine, engine
from tests.over_a_store import Stores, shared_tests

MODULES = [
    "test_limiter",
    "test_cancellation",
    "test_edges",
    "test_field_notes",
    "test_joint",
    "test_warmup",
    "test_shadow",
    "test_restriction",
]

_TICK = "is about one tick of the loop, and an answer takes more; see test_shared.py"
_NAMED = "its keys have no text that other processes could know"
_BOUND = "max_keys bounds what this process knows; the engine counts each key by itself"
_RAMP = "takes 5 s, and ramps are this process's own: shorter tests of them are not left out"
_LOOPS = "runs loops of its own; loops one after the other are in test_shared_engines.py"
#: Tests that are about something else, and why.
LEFT_OUT = {
    "test_granted_and_cancelled_in_one_tick_hands_the_place_on_at_once": _TICK,
    "test_granted_changed_and_cancelled_in_one_tick": _TICK,
    "test_cancelling_several_at_one_instant": _TICK,
    "test_one_who_is_cancelled_at_its_turn_hands_it_on": _TICK,
    "test_a_key_that_cannot_be_shown_stops_nothing": _NAMED,
    "test_a_key_that_breaks_does_not_end_the_forgetting": _NAMED,
    "test_a_key_that_breaks_in_a_timer_hangs_nobody": _NAMED,
    "test_a_key_that_breaks_in_the_middle_leaves_no_place_behind": _NAMED,
    "test_settling_keeps_within_max_keys": _BOUND,
    "test_22_four_a_day_while_eviction_runs_as_often_as_it_can": _BOUND,
    "test_never_over_and_nothing_lost_whatever_comes": "its times are not whole microseconds",
    "test_03_never_over_under_hostile_arrivals": "its times are not whole microseconds",
    "test_12_no_loop_is_blocked_while_five_thousand_wait": "fills a short window one by one",
    "test_thousands_that_go_at_once_do_not_stop_the_loop": "each of them asks by itself",
    "test_the_fast_lane_and_the_long_way_decide_alike": "there is no fast lane",
    "test_statistics": "there is one reason more to be refused",
    "test_two_loops_at_once_are_told_so": _LOOPS,
    "test_a_loop_that_is_only_paused": _LOOPS,
    "test_keys_are_forgotten_on_the_second_loop_too": _LOOPS,
    "test_a_coroutine_closed_while_its_loop_is_paused": _LOOPS,
    "test_a_second_loop_sweeps_what_the_first_has_left": _LOOPS,
    "test_periods_changed_between_two_runs_of_a_loop": _LOOPS,
    "test_a_queue_of_a_loop_that_was_closed": _LOOPS,
    "test_01_a_loop_that_was_closed_over_its_waiters": _LOOPS,
    "test_three_loops_in_a_row_each_leaving_one_behind_that_would_wait": _LOOPS,
    "test_whenever_the_true_cost_is_told_it_is_what_is_charged": _LOOPS,
    "test_a_gap_is_measured_from_the_last_attempt_of_the_fast_lane": "there is no fast lane",
    "test_18_bounding_the_keys_never_un_limits": _BOUND,
    "test_past_max_keys_it_tells_of_the_shared_ramp": _BOUND,
    "test_21_retry_after_is_exact": "its times are not whole microseconds",
    "test_settled_costs_keep_the_limit": "steps by hand through what never waits in one process",
    "test_retry_after_is_exact_with_fractions": "thousands of calls; test_script.py makes them",
    "test_waiting_leaves_no_work_for_the_garbage_collector": "the client does as it connects",
    "test_admissions_follow_the_ramp": _RAMP,
    "test_a_long_window_is_paced_while_it_warms": _RAMP,
    "test_17_idle_keys_are_freed_without_a_call": "100 000 keys take long to ask for",
}

_stores = Stores()


@pytest.fixture(scope="module")
def valkey() -> Iterator[Engine]:
    with engine() as one:
        yield one


@pytest.fixture(autouse=True)
async def _stores_are_closed(valkey: Engine) -> AsyncIterator[None]:
    _stores.url = valkey.url
    yield
    await _stores.close()


_seen: set[str] = set()
for _module in MODULES:
    _all, _read = shared_tests(_module, _stores.limiter, LEFT_OUT)
    _seen |= _all
    globals().update(_read)


def test_every_test_left_out_is_one_and_most_are_not() -> None:
    assert not set(LEFT_OUT) - _seen
    assert len(_seen) > 5 * len(LEFT_OUT)
