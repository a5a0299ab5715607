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


for _module in MODULES:
    for _name, _found in shared_tests(_module, _stores.limiter, LEFT_OUT):
        globals()[_name] = _found
