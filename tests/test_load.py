"""The load controller in a limiter: who is refused, who waits, and that no place is ever lost."""

import asyncio
import gc
import math
import pickle
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from aiolimit import UNLIMITED, Limiter, LoadController, Overloaded, QueueFull, RateLimited
from aiolimit.load.law import Change, LoadState
from aiolimit.testing import FakeClock
from tests.support import Callers

INF = math.inf


def force(
    controller: LoadController, cap: float = INF, rate: float = INF, iteration: float = INF
) -> None:
    """Have the gate do what the test says, and the controller conclude nothing."""
    controller.gate.due = INF
    if controller._timer is not None:
        controller._timer.cancel()
    controller._state = LoadState(rate=rate, cap=cap, cost=0.01, shortest=0.01)
    controller.gate.set_limits(cap, rate, iteration)


@asynccontextmanager
async def forced(
    cap: float = INF, rate: float = INF, iteration: float = INF, **options: Any
) -> AsyncIterator[tuple[Limiter, LoadController, FakeClock]]:
    clock = FakeClock()
    controller = LoadController(clock=clock)
    limiter = Limiter("1000000/s", name="search", load=controller, clock=clock, **options)
    async with controller:
        force(controller, cap, rate, iteration)
        yield limiter, controller, clock


def in_flight(limiter: Limiter, controller: LoadController) -> tuple[int, int]:
    return limiter.statistics().in_flight, controller.in_flight


# --- running it ----------------------------------------------------------------------------------


async def test_a_controller_that_does_not_run_is_told_of() -> None:
    limiter = Limiter("10/s", name="search", load=LoadController())
    for call in (limiter.acquire(), limiter.acquire(max_wait=0)):
        with pytest.raises(RuntimeError) as raised:
            await call
        assert "the LoadController of limiter 'search' is not running" in str(raised.value)
        assert "async with controller" in str(raised.value)
        assert "RateLimitMiddleware" in str(raised.value)
    with pytest.raises(RuntimeError, match="is not running"):
        limiter.try_acquire()
    with pytest.raises(RuntimeError, match="is not running"):
        async with limiter.acquire():
            pass
    assert "not running" in str(limiter.explain())
    assert limiter.peek().remaining == 10


async def test_nor_one_that_has_run() -> None:
    limiter = Limiter("1000/s", load=(controller := LoadController()))
    async with controller:
        for _ in range(100):  # some of it in the fast lane
            async with limiter.acquire():
                pass
    with pytest.raises(RuntimeError, match="is not running"):
        async with limiter.acquire():
            pass


def test_three_loops_in_a_row() -> None:
    controller = LoadController(sensors={"mine": lambda: 0.5})
    limiter = Limiter("1000/s", load=controller)

    behind = []

    async def use() -> None:
        async with controller:
            async with limiter.acquire(), limiter.acquire():
                assert controller.in_flight == 2
            holder = asyncio.create_task(hold())
            await asyncio.sleep(0)
            assert controller.in_flight == 1
            force(controller, cap=1)
            behind.append(asyncio.create_task(hold()))
            await asyncio.sleep(0)
            assert limiter.statistics().waiting == 1
            holder.cancel()  # and the waiter is left behind

    async def hold() -> None:
        async with limiter.acquire():
            await asyncio.Event().wait()

    for _ in range(3):
        asyncio.run(use())
        assert controller.in_flight == 0
        assert limiter.statistics().waiting == 0


async def test_entered_twice_it_runs_until_both_have_left() -> None:
    controller = LoadController()
    async with controller:
        async with controller:
            assert controller.is_running
        assert controller.is_running
    assert not controller.is_running


async def test_who_entered_first_may_leave_first() -> None:
    controller = LoadController(sensors={"mine": lambda: 0.5})
    first, second = asyncio.Event(), asyncio.Event()

    async def stay(until: asyncio.Event) -> None:
        async with controller:
            await until.wait()

    tasks = [asyncio.create_task(stay(event)) for event in (first, second)]
    await asyncio.sleep(0.01)
    first.set()
    await tasks[0]
    assert controller.is_running
    second.set()
    await tasks[1]
    assert not controller.is_running


def test_a_coroutine_of_a_loop_that_ended_stops_nobody() -> None:
    controller = LoadController()

    async def stay() -> None:
        async with controller:
            await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    left = stay()
    task = loop.create_task(left)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()

    async def use() -> None:
        async with controller:
            asyncio.get_running_loop().call_soon(left.close)  # what the garbage collector does
            await asyncio.sleep(0)
            assert controller.is_running

    asyncio.run(use())
    assert not controller.is_running
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_controller_of_another_thread() -> None:
    controller = LoadController()
    limiter = Limiter("1000/s", load=controller)
    entered, done = threading.Event(), threading.Event()

    async def stay() -> None:
        async with controller:
            entered.set()
            while not done.is_set():
                await asyncio.sleep(0.001)

    async def call() -> None:
        async with limiter.acquire():
            pass

    thread = threading.Thread(target=asyncio.run, args=(stay(),))
    thread.start()
    entered.wait()
    try:
        with pytest.raises(RuntimeError, match="runs on another event loop"):
            asyncio.run(call())
    finally:
        done.set()
        thread.join()


def test_from_two_loops_at_once() -> None:
    controller = LoadController()
    entered, done = threading.Event(), threading.Event()

    async def stay() -> None:
        async with controller:
            entered.set()
            while not done.is_set():
                await asyncio.sleep(0.001)

    thread = threading.Thread(target=asyncio.run, args=(stay(),))
    thread.start()
    entered.wait()

    async def enter() -> None:
        async with controller:
            pass

    try:
        with pytest.raises(RuntimeError, match="runs on another event loop"):
            asyncio.run(enter())
    finally:
        done.set()
        thread.join()


async def test_two_limiters_share_one() -> None:
    clock = FakeClock()
    controller = LoadController(clock=clock)
    one, other = (Limiter("1000/s", load=controller, clock=clock) for _ in range(2))
    async with controller:
        force(controller, cap=2)
        async with one.acquire("a"), other.acquire("b"):
            for limiter in (one, other):
                with pytest.raises(Overloaded):
                    await limiter.acquire("c", max_wait=0).__aenter__()
        assert controller.in_flight == 0


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"cpu": 0}, ValueError, "cpu must be a share above 0 and at most 1, not 0"),
        ({"cpu": 1.2}, ValueError, "not 1.2"),
        ({"cpu": "97%"}, TypeError, "cpu must be a number, not '97%'"),
        ({"queue": 0}, ValueError, "queue must be 0.001 to 10 seconds, not 0"),
        ({"queue": -1}, ValueError, "not -1"),
        ({"iteration": 11}, ValueError, "iteration must be 0.001 to 10 seconds, not 11"),
        ({"iteration": math.nan}, ValueError, "not nan"),
        ({"memory": 80}, ValueError, "memory must be a share above 0 and at most 1, not 80"),
        ({"gc": True}, TypeError, "gc must be a number, not True"),
        ({"without": "gc"}, TypeError, "without must be a set of sensor names, not 'gc'"),
        ({"without": {"gpu"}}, ValueError, "unknown sensor 'gpu'"),
        ({"sensors": {"cpu": int}}, ValueError, "sensor 'cpu' is built in"),
        ({"sensors": {"mine": 3}}, TypeError, "sensor 'mine' must be a function"),
        ({"sensors": [int]}, TypeError, "sensors must map names to functions"),
        ({"sensors": {"": int}}, TypeError, "must be text that is not empty, not ''"),
        ({"dry_run": 1}, TypeError, "dry_run must be True or False, not 1"),
        ({"clock": 3}, TypeError, "clock must have the methods time and call_later"),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error) as raised:
        LoadController(**options)
    assert says in str(raised.value)


def test_a_limiter_takes_only_a_controller_with_its_clock() -> None:
    with pytest.raises(TypeError, match="load must be a LoadController or None, not True"):
        Limiter("10/s", load=True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="need the same clock"):
        Limiter("10/s", load=LoadController(), clock=FakeClock())
    with pytest.raises(ValueError, match="need the same clock"):
        Limiter("10/s", load=LoadController(clock=FakeClock()))


# --- refusing ------------------------------------------------------------------------------------


async def test_who_may_not_wait_is_refused_at_the_cap() -> None:
    async with forced(cap=2) as (limiter, controller, _):
        async with limiter.acquire("a"), limiter.acquire("b"):
            assert in_flight(limiter, controller) == (2, 2)
            with pytest.raises(Overloaded) as refused:
                async with limiter.acquire("c", max_wait=0):
                    pass
        error = refused.value
        assert isinstance(error, RateLimited)
        assert (error.limiter, error.key, error.reason) == ("search", "c", "overload")
        assert error.binding == "in_flight"
        assert error.retry_after is not None
        assert 0.5 <= error.retry_after < 1.5
        assert "search: overloaded, as many calls are in flight as can be served" in str(error)
        assert limiter.statistics().rejected["overload"] == 1
        assert in_flight(limiter, controller) == (0, 0)
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.binding, again.key) == (str(error), "in_flight", "c")
        async with limiter.acquire("c", max_wait=0):
            pass


async def test_a_subclass_is_controlled_as_well() -> None:
    class Mine(Limiter):
        pass

    clock = FakeClock()
    controller = LoadController(clock=clock)
    limiter = Mine("1000/s", load=controller, clock=clock)
    async with controller:
        force(controller, cap=1)
        for _ in range(3):
            async with limiter.acquire():
                assert controller.in_flight == 1
                with pytest.raises(Overloaded):
                    async with limiter.acquire(max_wait=0):
                        pass
            assert in_flight(limiter, controller) == (0, 0)
    assert isinstance(limiter, Mine)

    class Odd(Limiter):
        def acquire(self, *given: Any, **named: Any) -> Any:
            return super().acquire(*given, **named)

    with pytest.raises(TypeError, match="Odd overrides acquire, so it takes neither"):
        Odd("1000/s", load=controller, clock=clock)


async def test_a_refusal_takes_no_quota() -> None:
    async with forced(cap=0) as (limiter, _, _clock):
        limiter.update("5/s")
        for _ in range(20):
            with pytest.raises(Overloaded):
                async with limiter.acquire(max_wait=0):
                    pass
        assert limiter.peek().remaining == 5


async def test_refused_callers_do_not_come_back_together() -> None:
    async with forced(cap=0) as (limiter, _, _clock):
        times = set()
        for _ in range(50):
            with pytest.raises(Overloaded) as refused:
                await limiter.acquire(max_wait=0).__aenter__()
            times.add(round(refused.value.retry_after, 3))
        assert len(times) == 50
        assert max(times) - min(times) > 0.9


async def test_the_quota_still_refuses_with_its_own_error() -> None:
    async with forced() as (limiter, _, _clock):
        limiter.update("1/s")
        await limiter.acquire()
        with pytest.raises(RateLimited) as refused:
            await limiter.acquire(max_wait=0)
        assert type(refused.value) is RateLimited
        assert refused.value.reason == "quota"


async def test_without_a_limit_the_load_counts_all_the_same() -> None:
    async with forced(cap=0) as (limiter, _, _clock):
        with pytest.raises(Overloaded):
            async with limiter.acquire(limit=UNLIMITED, max_wait=0):
                pass
        async with limiter.acquire(cost=0, max_wait=0):  # passes at once, as ever
            pass


async def test_an_iteration_that_is_too_old() -> None:
    async with forced(iteration=0.1) as (limiter, _, clock):
        async with limiter.acquire():
            pass
        clock.jump(0.099)  # in this very iteration
        async with limiter.acquire():
            pass
        clock.jump(0.002)
        with pytest.raises(Overloaded) as refused:
            async with limiter.acquire(max_wait=0):
                pass
        assert refused.value.binding == "iteration"
        assert "the event loop is behind" in str(refused.value)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        async with limiter.acquire(max_wait=0):
            pass


async def test_a_licence_is_not_for_an_iteration_that_gets_old() -> None:
    async with forced(iteration=0.1) as (limiter, _, clock):
        for _ in range(3):  # the marker comes round at once
            async with limiter.acquire():
                pass
            await asyncio.sleep(0)
        clock.jump(0.031)
        async with limiter.acquire():  # the licence has run out
            pass
        clock.jump(0.101)
        with pytest.raises(Overloaded):
            async with limiter.acquire(max_wait=0):
                pass


async def test_callers_who_only_acquire_are_paced() -> None:
    async with forced(rate=10) as (limiter, controller, clock):
        assert limiter.try_acquire()
        assert not limiter.try_acquire()
        with pytest.raises(Overloaded) as refused:
            await limiter.acquire(max_wait=0)
        assert refused.value.binding == "rate"
        clock.jump(0.1)
        await limiter.acquire(max_wait=0)
        assert controller.in_flight == 0
        assert limiter.statistics().rejected["overload"] == 2
        async with limiter.acquire(max_wait=0):  # who stays is counted instead
            assert controller.in_flight == 1


async def test_paced_waiters_go_in_order() -> None:
    async with forced(rate=10) as (limiter, _, clock):
        order = []

        async def call(who: int) -> None:
            await limiter.acquire(who % 2)
            order.append((who, round(clock.time(), 3)))

        tasks = [asyncio.create_task(call(who)) for who in range(5)]
        await clock.advance(1)
        assert order == [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
        await asyncio.gather(*tasks)


async def test_a_dry_run_refuses_nobody_and_says_whom_it_would_have() -> None:
    clock = FakeClock()
    controller = LoadController(dry_run=True, clock=clock)
    limiter = Limiter("1000/s", load=controller, clock=clock)
    async with controller:
        force(controller, cap=1)
        async with limiter.acquire(max_wait=0), limiter.acquire(max_wait=0):
            assert controller.in_flight == 2
            assert "so new requests would be refused" in str(limiter.explain())
            assert limiter.explain().binding == "nothing"
        assert controller.would_refuse == 1
        assert limiter.statistics().rejected["overload"] == 0


# --- waiting -------------------------------------------------------------------------------------


async def test_waiters_are_woken_in_order_by_a_release() -> None:
    async with forced(cap=1) as (limiter, controller, clock):
        callers = Callers(limiter, clock)
        permit = limiter.acquire("held")
        await permit.__aenter__()
        for who, key in enumerate("aabacbd"):
            callers.call(who, key)
        await clock.settle()
        assert callers.who() == []
        assert limiter.statistics().waiting == 7
        await permit.__aexit__(None, None, None)
        await callers.end()
        assert callers.who() == [0, 1, 2, 3, 4, 5, 6]
        assert in_flight(limiter, controller) == (0, 0)


async def test_while_they_wait_the_loop_sleeps() -> None:
    controller = LoadController()
    limiter = Limiter("1000000/s", load=controller)

    async def enter() -> None:
        async with limiter.acquire():
            pass

    async with controller:
        force(controller, cap=1)
        async with limiter.acquire():
            tasks = [asyncio.create_task(enter()) for _ in range(10)]
            await asyncio.sleep(0)
            begun = time.thread_time()
            await asyncio.sleep(0.3)
            assert time.thread_time() - begun < 0.1
        await asyncio.gather(*tasks)


async def test_they_do_not_wait_long_while_the_cpu_is_idle() -> None:
    controller = LoadController()
    limiter = Limiter("1000000/s", load=controller)

    async def call(cpu: float, io: float) -> None:
        async with limiter.acquire():
            burn(cpu)
            await asyncio.sleep(io)

    async with controller:
        for _ in range(40):  # quick ones, so that the shortest time is that of their 5 ms
            await call(0.005, 0)
        assert controller.state.cap < 40
        slow = [asyncio.create_task(call(0, 0.4)) for _ in range(800)]
        await asyncio.wait_for(asyncio.gather(*slow), 6)  # at 30 at a time it were 11 s
        assert in_flight(limiter, controller) == (0, 0)


async def test_who_waits_for_the_cap_is_told_to_the_law() -> None:
    async with forced(cap=1) as (limiter, controller, clock):
        callers = Callers(limiter, clock)
        async with limiter.acquire("held"):
            for who in range(3):
                callers.call(who, who)
            await clock.settle()
            readings, counts = {"lagged": 0.0}, (0, 0, 0)
            assert controller._sampling._between(1.0, readings, readings, counts).capped == 3
        await callers.end()


async def test_newcomers_do_not_overtake() -> None:
    async with forced(cap=1) as (limiter, _, clock):
        callers = Callers(limiter, clock)
        async with limiter.acquire("held"):
            callers.call("waits", "a")
            await clock.settle()
        # The place is given away already, though the task has not run.
        with pytest.raises(Overloaded):
            async with limiter.acquire("b", max_wait=0):
                pass
        await callers.end()
        assert callers.who() == ["waits"]


async def test_a_wait_that_is_too_long_ends_in_overloaded() -> None:
    async with forced(cap=1) as (limiter, controller, clock):
        async with limiter.acquire("held"):
            callers = Callers(limiter, clock)
            callers.call("patient", "a", max_wait=5)
            callers.call("hasty", "b", max_wait=0.5)
            await clock.advance(0.49)
            assert not any(task.done() for task in callers.tasks)
            await clock.advance(0.02)
            assert callers.tasks[1].done()
            error = callers.tasks[1].exception()
            assert isinstance(error, Overloaded)
            assert error.binding == "in_flight"
            await clock.advance(5)
            assert isinstance(callers.tasks[0].exception(), Overloaded)
        assert in_flight(limiter, controller) == (0, 0)
        assert limiter.statistics().waiting == 0


async def test_a_step_that_is_due_while_the_queue_is_served_lets_nobody_in_twice() -> None:
    async with forced(cap=1) as (limiter, controller, clock):
        callers = Callers(limiter, clock)
        async with limiter.acquire("held"):
            callers.call("first", "k")
            await clock.settle()
            second = callers.call("second", "k")
            await clock.settle()

            def step(_now: float) -> None:
                controller.gate.due = INF
                controller.gate.set_limits(3, INF, INF)

            controller.gate._on_due = step
            controller.gate.due = clock.time()  # its timer is late
            second.cancel()
            await clock.settle()
            async with limiter.acquire("newcomer"):
                pass
        await callers.end()
        assert callers.who() == ["first"]
        assert in_flight(limiter, controller) == (0, 0)
        assert limiter.peek("k").remaining == 1000000 - 1


async def test_who_waits_for_one_thing_does_not_wait_for_another() -> None:
    async with forced(cap=1, rate=1) as (limiter, controller, clock):
        async with limiter.acquire("held"):
            callers = Callers(limiter, clock)
            callers.call("holds", "a")
            await clock.settle()
            await limiter.acquire("b", max_wait=0)  # paced, and the pace is free

            async def only_acquires() -> None:
                await limiter.acquire("c")

            paced = asyncio.create_task(only_acquires())
            await clock.advance(1)
            assert paced.done()
        await callers.end()
        assert in_flight(limiter, controller) == (0, 0)


async def test_who_comes_after_one_whose_time_is_over_is_not_forgotten() -> None:
    async with forced(cap=1) as (limiter, controller, clock):
        callers = Callers(limiter, clock)
        async with limiter.acquire("held"):
            callers.call("hasty", "a", max_wait=0.5)
            callers.call("patient", "a")
            await clock.advance(1)
            assert isinstance(callers.tasks[0].exception(), Overloaded)
        await callers.end()
        assert callers.who() == ["patient"]
        assert in_flight(limiter, controller) == (0, 0)


async def test_who_cannot_make_it_fails_at_once() -> None:
    async with forced(cap=1, rate=10) as (limiter, _, clock):
        async with limiter.acquire("held"):
            callers = Callers(limiter, clock)
            for who in range(20):
                callers.call(who, "a", max_wait=1)
            await clock.settle()
            failed = [who for who, task in enumerate(callers.tasks) if task.done()]
            assert failed == list(range(10, 20))  # ten a second: the others may make it
        await callers.end()


async def test_waiters_for_the_load_count_as_waiters() -> None:
    async with forced(cap=1, max_waiters=2) as (limiter, _, clock):
        async with limiter.acquire("held"):
            callers = Callers(limiter, clock)
            callers.call(0)
            callers.call(1)
            await clock.settle()
            with pytest.raises(QueueFull):
                await limiter.acquire()
        await callers.end()
        assert callers.who() == [0, 1]


async def test_quota_and_load_together() -> None:
    async with forced(cap=1) as (limiter, controller, clock):
        limiter.update("2/s")
        callers = Callers(limiter, clock)
        async with limiter.acquire("a"):
            for who in range(4):
                callers.call(who, "a")
            await clock.settle()
        await clock.advance(5)
        assert callers.who() == [0, 1, 2, 3]
        assert callers.times() == [0, 1, 1, 2]
        assert in_flight(limiter, controller) == (0, 0)


async def test_a_raised_cap_lets_them_in() -> None:
    async with forced(cap=1) as (limiter, controller, clock):
        callers = Callers(limiter, clock)
        async with limiter.acquire("held"):
            for who in range(3):
                callers.call(who, who)
            await clock.settle()
            force(controller, cap=4)
            await clock.settle()
            assert callers.who() == [0, 1, 2]


async def test_the_end_of_an_old_iteration_lets_them_in() -> None:
    async with forced(iteration=0.1) as (limiter, _, clock):
        callers = Callers(limiter, clock)
        async with limiter.acquire():
            pass
        clock.jump(0.2)
        callers.call("waits")
        await clock.settle()
        assert callers.who() == ["waits"]


async def test_a_controller_that_ends_holds_nobody_up() -> None:
    clock = FakeClock()
    controller = LoadController(clock=clock)
    limiter = Limiter("1000/s", load=controller, clock=clock)
    callers = Callers(limiter, clock)
    async with controller:
        force(controller, cap=1)
        permit = limiter.acquire()
        await permit.__aenter__()
        callers.call("waits")
        await clock.settle()
    await callers.end()
    assert callers.who() == ["waits"]
    await permit.__aexit__(None, None, None)  # late, and harmless
    async with controller:
        assert controller.in_flight == 0


# --- cancellation: design rule 4 -----------------------------------------------------------------

WAYS: dict[str, Callable[[Callable[[], Any]], Any]] = {}


def way(function: Callable[[Callable[[], Any]], Any]) -> Callable[[Callable[[], Any]], Any]:
    WAYS[function.__name__] = function
    return function


@way
async def by_cancel(work: Callable[[], Any]) -> None:
    task = asyncio.create_task(work())
    await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@way
async def by_cancel_before_it_ran(work: Callable[[], Any]) -> None:
    task = asyncio.create_task(work())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@way
async def by_wait_for(work: Callable[[], Any]) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(work(), 0.001)


@way
async def by_timeout(work: Callable[[], Any]) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await work()


@way
async def by_anyio_scope(work: Callable[[], Any]) -> None:
    with anyio.move_on_after(0.001) as scope:
        await work()
    assert scope.cancelled_caught


@way
async def by_anyio_group(work: Callable[[], Any]) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await anyio.sleep(0.001)
        group.cancel_scope.cancel()


@way
async def by_error_of_a_sibling(work: Callable[[], Any]) -> None:
    async def fail() -> None:
        await asyncio.sleep(0.001)
        raise LookupError

    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(work())
            group.create_task(fail())


@pytest.mark.parametrize("cancelled", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("cap", [1, 1000])
async def test_cancelled_inside_the_held_scope(
    cancelled: Callable[[Callable[[], Any]], Any], cap: int
) -> None:
    controller = LoadController()
    limiter = Limiter("1000000/s", load=controller)

    async def hold() -> None:
        async with limiter.acquire():
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)  # an anyio scope cancels again here

    async with controller:
        force(controller, cap=cap)
        await cancelled(hold)
        await asyncio.sleep(0)
        assert in_flight(limiter, controller) == (0, 0)
        async with limiter.acquire(max_wait=0):
            pass


@pytest.mark.parametrize("cancelled", WAYS.values(), ids=WAYS)
async def test_cancelled_while_it_waits(cancelled: Callable[[Callable[[], Any]], Any]) -> None:
    controller = LoadController()
    limiter = Limiter("1000000/s", load=controller)

    async def enter() -> None:
        async with limiter.acquire():
            raise AssertionError

    async with controller:
        force(controller, cap=1)
        async with limiter.acquire():
            await cancelled(enter)
            await asyncio.sleep(0)
            assert limiter.statistics().waiting == 0
            assert in_flight(limiter, controller) == (1, 1)
        assert in_flight(limiter, controller) == (0, 0)
        async with limiter.acquire(max_wait=0):
            pass


async def test_cancelled_in_the_tick_in_which_it_is_let_in() -> None:
    async with forced(cap=1) as (limiter, controller, clock):
        callers = Callers(limiter, clock)
        permit = limiter.acquire()
        await permit.__aenter__()
        first = callers.call("first")
        callers.call("second")
        await clock.settle()
        await permit.__aexit__(None, None, None)  # lets the first in, which has not run
        first.cancel()
        await callers.end()
        assert callers.who() == ["second"]
        assert in_flight(limiter, controller) == (0, 0)
        assert limiter.peek().remaining == 1000000 - 2


async def test_cancelling_at_random_loses_no_place() -> None:
    import random

    rng = random.Random(3)
    controller = LoadController()
    limiter = Limiter("1000000/s", load=controller)
    most = 0

    async def work(key: int) -> None:
        nonlocal most
        async with limiter.acquire(key):
            most = max(most, controller.in_flight)
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)

    async with controller:
        force(controller, cap=5)
        tasks = []
        for _ in range(3000):
            tasks.append(asyncio.create_task(work(rng.randrange(10))))
            if rng.random() < 0.3:
                rng.choice(tasks).cancel()
            if rng.random() < 0.3:
                await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
        assert most == 5
        assert in_flight(limiter, controller) == (0, 0)
        assert limiter.statistics().waiting == 0
        assert controller.gate.waiting() == 0


# --- for real: this process ----------------------------------------------------------------------


async def busy(controller: LoadController, limiter: Limiter, work: Callable[[], Any]) -> str:
    """Thirty callers at a time until the controller knows what a call costs; what it says then."""
    stop = False
    count = 0

    async def call() -> None:
        nonlocal count
        while not stop:
            try:
                async with limiter.acquire(max_wait=0):
                    work()
                    await asyncio.sleep(0)
                    count += 1
            except Overloaded:
                await asyncio.sleep(0.001)

    async with controller:
        tasks = [asyncio.create_task(call()) for _ in range(30)]
        for _ in range(200):
            await asyncio.sleep(0.05)
            if controller.state.cost is not None and controller.state.at > 0 and count > 60:
                break
        for _ in range(8):
            await asyncio.sleep(0.1)
        said = str(limiter.explain())
        stop = True
        await asyncio.gather(*tasks)
    return said


def burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def test_it_learns_what_a_call_costs() -> None:
    controller = LoadController()
    limiter = Limiter("1000000/s", load=controller)
    await busy(controller, limiter, lambda: burn(0.004))
    state = controller.state
    assert state.cost is not None
    assert state.cost == pytest.approx(0.004, rel=0.25)
    assert state.share <= 1.0
    assert state.rate == pytest.approx(0.97 * state.share / state.cost, rel=0.35)
    assert all(up for name, up in controller.sensors().items() if name in ("cpu", "gc"))


async def test_a_call_that_blocks_costs_what_it_blocks() -> None:
    controller = LoadController()
    limiter = Limiter("1000000/s", load=controller)
    await busy(controller, limiter, lambda: time.sleep(0.01))
    assert controller.state.cost is not None
    assert 0.006 < controller.state.cost < 0.02
    assert controller.state.rate < 170


async def test_a_storm_of_garbage_is_a_pressure() -> None:
    controller = LoadController(gc=0.02)
    limiter = Limiter("1000000/s", load=controller)
    rubbish = [[n] for n in range(100_000)]
    count = 0

    def work() -> None:
        nonlocal count
        count += 1
        gc.collect() if count % 3 == 0 else burn(0.0005)

    try:
        said = await busy(controller, limiter, work)
    finally:
        rubbish.clear()
    assert controller.state.binding == "gc"
    assert controller.state.factor < 1
    assert "gc at" in said


async def test_sensors_of_the_users_own() -> None:
    release = threading.Event()

    def blocks() -> float:
        release.wait(20)
        return 5.0

    def raises() -> float:
        raise LookupError("the database is away")

    async def asks() -> float:
        await asyncio.sleep(0)
        return 1.1

    async def cancels() -> float:
        raise asyncio.CancelledError  # of a task that it waited for

    controller = LoadController(
        sensors={
            "plain": lambda: 1.05,
            "async": asks,
            "raises": raises,
            "nan": lambda: math.nan,
            "text": lambda: "high",
            "blocks": blocks,
            "cancels": cancels,
            "none": lambda: None,
        }
    )
    limiter = Limiter("1000000/s", load=controller)
    try:
        async with controller:
            for _ in range(200):
                await asyncio.sleep(0.02)
                async with limiter.acquire(max_wait=0):  # a broken sensor never fails a request
                    pass
                if controller.state.binding == "async":
                    break
            assert controller.state.binding == "async"
            assert controller.state.pressures["plain"] == 1.05
            assert controller.state.factor == pytest.approx(1 - 0.8 * 0.1 / 0.1875)
            for broken in ("raises", "nan", "text", "blocks", "none", "cancels"):
                assert broken not in controller.state.pressures
            up = controller.sensors()
            assert up["plain"]
            assert up["async"]
            assert not up["raises"]
            assert not up["nan"]
            begun = time.monotonic()
        assert time.monotonic() - begun < 5  # leaving does not wait for the one that blocks
    finally:
        release.set()


async def test_what_it_says() -> None:
    async with forced(cap=9, rate=63) as (limiter, controller, clock):
        controller._state = LoadState(
            cost=0.0154,
            share=0.97,
            rate=63,
            cap=9,
            shortest=0.02,
            change=Change(clock.time() - 0.3, "cost", 0.0098, 0.0154),
        )
        permits = [limiter.acquire(max_wait=0) for _ in range(9)]
        for permit in permits[:8]:
            await permit.__aenter__()
        free = limiter.explain()
        assert free.binding == "nothing"
        assert str(free) == (
            "search: 1000000/s configured. This process can do about 63/s (15.4 ms CPU a request, "
            "core shared 97 %); 8 of 9 in flight. Last change 0.3 s ago: cost rose from 9.80 to "
            "15.4 ms."
        )
        await permits[8].__aenter__()
        full = limiter.explain()
        assert full.binding == "load"
        assert full.load is not None
        assert full.load.obstacle == "in_flight"
        assert "; 9 of 9 in flight, so new requests are refused. Last change" in str(full)
        for permit in permits:
            await permit.__aexit__(None, None, None)


async def test_what_a_limiter_has_let_pass_is_counted_when_it_has_gone_too() -> None:
    clock = FakeClock()
    controller = LoadController(clock=clock)
    async with controller:
        limiter = Limiter("1000/s", load=controller, clock=clock)
        async with limiter.acquire():
            pass
        assert controller._count()[0] == 1
        del limiter, clock
        gc.collect()
        assert not controller._limiters
        assert controller.admitted == 1
        controller._step(1.0)
    assert controller.admitted == 1
