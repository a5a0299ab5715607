"""The script in the engine, against the same calls made on the windows of this process."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from aiolimit.counts import Limits
from aiolimit.memory import MemoryStore
from aiolimit.rate import Rate
from aiolimit.shared.names import Names
from aiolimit.shared.script import SCRIPT, Answer, Call, Shape, answers_of, batch_of
from tests.engines import engine, redis_server
from tests.oracle import ExactLog


@pytest.fixture(scope="module", params=["valkey", "redis"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    binary = redis_server() if request.param == "redis" else None
    with engine(binary) as one, one.client() as connected:
        yield connected


class Keeper:
    """The windows of a few keys in the engine, at a time that the test tells."""

    def __init__(
        self, client: Any, rates: tuple[Rate, ...], sub_windows: int | None, burst: float | None
    ) -> None:
        client.flushall()
        self.script = client.register_script(SCRIPT)
        self.rates, self.sub_windows, self.burst = rates, sub_windows, burst
        self.names = Names("test:", "model")

    def shape(self, limits: Limits) -> Shape:
        ends = self.names.windows(self.rates, self.sub_windows)
        return Shape(ends, self.rates, limits, self.sub_windows, self.burst)

    def run(self, *calls: Call) -> list[bytes]:
        keys, text = batch_of(calls)
        answers = answers_of(self.script(keys=keys, args=[text]))
        return [answer for answer in answers if isinstance(answer, bytes)]

    def ask(self, shape: Shape, call: Call, now: float) -> Answer:
        (answer,) = self.run(call)
        return shape.answer(answer, now)


CASES = [
    ((Rate(10, 1.0),), 32, None),
    ((Rate(10, 1.0),), 4, None),
    ((Rate(7, 1.0),), None, None),
    ((Rate(20, 1.0), Rate(60, 7.0)), 8, None),
    ((Rate(5, 0.5), Rate(40, 10.0), Rate(50, 30.0)), 5, None),
    ((Rate(20, 1.0),), 16, 3),
    ((Rate(20, 1.0), Rate(60, 8.0)), 8, 5),
]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_engine_decides_as_this_process_does(client: Any, case: int, seed: int) -> None:
    rates, sub_windows, burst = CASES[case]
    random_ = random.Random(seed * 100 + case)
    keeper = Keeper(client, rates, sub_windows, burst)
    model = MemoryStore(rates, sub_windows=sub_windows, burst=burst)
    most = tuple(rate.limit for rate in rates)
    grants: list[tuple[str, float, float, float, Limits]] = []
    ticks = 640  # sixty-fourths of a second, which are whole microseconds and exact floats
    for _ in range(400):
        ticks += random_.choice([0, 0, 0, 1, 1, 2, 5, 8, 20, 70])
        now = ticks / 64
        key = random_.choice("aab")
        limits: Limits = tuple(
            None if len(rates) > 1 and random_.random() < 0.05 else limit for limit in most
        )
        if random_.random() < 0.1:
            limits = tuple(limit and limit * random_.choice([0.5, 2]) for limit in limits)
        if all(limit is None for limit in limits):
            continue
        shape, name = keeper.shape(limits), keeper.names.of(key)
        verb = random_.random()
        if verb < 0.75:
            cost = random_.choice([1, 1, 1, 2, 3, 0.5])
            count = random_.choice([1, 1, 2, 5])
            granted = 0
            while granted < count and model.take(key, cost, cost, limits, now)[0]:
                granted += 1
            answer = keeper.ask(shape, shape.take(name, now, [(cost, count)]), now)
            assert answer.granted == granted, (now, key, cost, count, limits)
            if granted:
                grants.append((key, cost * granted, now, answer.at, limits))
        elif verb < 0.85:
            cost = random_.choice([1, 4])
            model.charge(key, cost, limits, now)
            keeper.ask(shape, shape.charge(name, now, cost), now)
            grants.append((key, cost, now, now * 1e6, limits))
        elif grants:
            key, cost, at, engine_at, limits = grants.pop(random_.randrange(len(grants)))
            shape, name = keeper.shape(limits), keeper.names.of(key)
            fastest = max(most[0] * 2 / rates[0].per, 1e3)
            model.fastest = fastest
            given = -model.take(key, -cost, 0, limits, now, at)[0]
            answer = keeper.ask(shape, shape.give_back(name, now, cost, engine_at, fastest), now)
            assert answer.granted == pytest.approx(given), (key, cost, at, now)
        # What the answer tells of the windows is what they are.
        if all(limit is not None for limit in limits):
            answer = keeper.ask(shape, shape.take(name, now, []), now)
            looks = model.look(key, 1, limits, now)
            for window, look, limit, rate in zip(answer.windows, looks, limits, rates, strict=True):
                assert look is not None
                assert limit is not None
                if burst is None:
                    room = max(0, window.room(now, limit, rate.per))
                    assert room == pytest.approx(look.remaining)
                    wait = window.wait(1, now, limit, rate.per)
                    assert wait == pytest.approx(look.retry_after, abs=2e-6)
    assert grants


@pytest.mark.parametrize("seed", range(3))
def test_where_the_clock_steps_back_no_time_has_passed(client: Any, seed: int) -> None:
    """As on a replica that is promoted, or where the time of the machine is set."""
    rates = (Rate(10, 1.0), Rate(30, 8.0))
    limits: Limits = (10, 30)
    keeper = Keeper(client, rates, 8, None)
    model = MemoryStore(rates, sub_windows=8)
    shape = keeper.shape(limits)
    random_ = random.Random(seed)
    clock = 64_000  # of the engine, sixty-fourths of a second
    times = dict.fromkeys("ab", (0, 0))  # what each key has written: its time, and what was lost
    stepped = 0
    for _ in range(600):
        clock += random_.choice([0, 1, 1, 2, 5, 8, 20, 70])
        if random_.random() < 0.03:
            clock -= random_.choice([1, 64, 640, 6400])
            stepped += 1
        key = random_.choice("aab")
        last, lost = times[key]
        its_time = max(clock + lost, last)
        count = random_.choice([1, 2, 5])
        granted = 0
        while granted < count and model.take(key, 1, 1, limits, its_time / 64)[0]:
            granted += 1
        call = shape.take(keeper.names.of(key), clock / 64, [(1, count)])
        answer = keeper.ask(shape, call, its_time / 64)
        assert answer.granted == granted
        assert answer.at == its_time * 1e6 / 64
        if granted:
            times[key] = its_time, its_time - clock
    assert stepped > 5


@pytest.mark.parametrize("seed", range(3))
def test_what_passed_without_the_engine_is_charged_where_it_happened(
    client: Any, seed: int
) -> None:
    """After it, no window holds more than its limit, whatever the engine then lets in."""
    rates = (Rate(20, 1.0),)
    limits: Limits = (20,)
    keeper = Keeper(client, rates, 4, None)
    shape, name = keeper.shape(limits), keeper.names.of("k")
    random_ = random.Random(seed)
    now, log = 640, ExactLog(64)
    for _ in range(60):
        # Some time at the engine ...
        for _ in range(random_.randrange(12)):
            now += random_.randrange(6)
            answer = keeper.ask(shape, shape.take(name, now / 64, [(1, 3)]), now / 64)
            log.admit(now, answer.granted)
        # ... and some without it, in which no more passes than there is room for.
        passed = []
        for _ in range(random_.randrange(6)):
            now += random_.randrange(12)
            room = 20 - log.used(now)
            cost = random_.randint(1, 3)
            if cost <= room:
                log.admit(now, cost)
                passed.append((now, cost))
        past = [((now - at) / 64, cost) for at, cost in passed]
        keeper.ask(shape, shape.debit(name, now / 64, -1, [], past), now / 64)
    assert log.worst() <= 20
    assert len(log.admissions) > 100
