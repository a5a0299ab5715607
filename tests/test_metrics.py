"""What Prometheus and OpenTelemetry are told is what happened, and telling it fails no request."""

import asyncio
import copy
import gc
import logging
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData
from prometheus_client import CollectorRegistry, Counter, generate_latest, make_asgi_app
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strictly
from prometheus_client.parser import text_string_to_metric_families

from aiolimit import UNLIMITED, Limiter, LoadController, RateLimited, WarmUp, metrics, otel
from aiolimit.http.asgi import RateLimitMiddleware
from aiolimit.load.adjustments import Adjustments
from aiolimit.load.law import LoadState
from aiolimit.tally import WAIT_BOUNDS
from aiolimit.testing import FakeClock
from aiolimit.watch.roster import INSTRUMENTS, label_names
from tests.programs import promtool
from tests.support import StoppingClock

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def exposed(registry: CollectorRegistry) -> Values:
    """What a scrape of it gives, read by prometheus-client's own parser."""
    text = generate_latest(registry).decode()
    found: Values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            which = sample.name, frozenset(sample.labels.items())
            assert which not in found, f"{which} is told twice"
            found[which] = sample.value
    return found


def of(values: Values, name: str, limiter: str = "search", **labels: str) -> float:
    return values[f"aiolimit_{name}", frozenset({"limiter": limiter, **labels}.items())]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def check_against_statistics(values: Values, limiter: Limiter) -> None:
    """Every number of `statistics()` is told, under the name of that field."""
    statistics = limiter.statistics()
    name = limiter.name
    for reason, count in statistics.rejected.items():
        assert of(values, "rejected_total", name, reason=reason) == count
    for reason, count in statistics.shadow_rejected.items():
        if limiter.shadow:
            assert of(values, "shadow_rejected_total", name, reason=reason) == count
    assert of(values, "rejected_total", name, reason="cancelled") == statistics.cancelled
    assert of(values, "admitted_total", name) == statistics.admitted
    assert of(values, "in_flight", name) == statistics.in_flight
    assert of(values, "waiting", name) == statistics.waiting
    assert of(values, "keys", name) == statistics.keys
    assert of(values, "keys_evicted_total", name) == statistics.evicted
    assert of(values, "near_limit_total", name) == statistics.near_limit
    assert of(values, "cost_admitted_total", name) == statistics.cost_admitted
    assert of(values, "cost_returned_total", name) == statistics.cost_returned
    assert of(values, "wait_seconds_count", name) == statistics.admitted
    if statistics.warmth is not None:
        assert of(values, "warm_up_ratio", name) == statistics.warmth


@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.01, 0.3, 2.0]),
            st.sampled_from(["a", "b", "c"]),
            st.sampled_from([1, 1, 1, 2, 7, 0]),
            st.sampled_from([0, 0.5, None]),
            st.sampled_from(["enter", "await", "try", "cancel", "give up", "adjust"]),
        ),
        max_size=30,
    ),
    options=st.sampled_from(
        [
            {},
            {"sub_windows": 2},
            {"burst": 2},
            {"max_waiters": 1},
            {"max_keys": 1},
            {"warm_up": WarmUp(start=0.5, over=3)},
            {"shadow": True},
        ]
    ),
)
@settings(deadline=None, max_examples=150)
def test_what_is_told_is_what_happened(
    calls: list[tuple[float, str, float, float | None, str]], options: dict[str, Any]
) -> None:
    async def main() -> None:
        clock, registry = FakeClock(), CollectorRegistry()
        limiter = Limiter("5/s", name="search", clock=clock, **options)
        metrics.register(limiter, registry=registry)
        passed = refused = 0
        cost_admitted = cost_returned = waited = 0.0
        tasks: list[asyncio.Task[None]] = []

        async def call(key: str, cost: float, max_wait: float | None, how: str) -> None:
            nonlocal passed, refused, cost_admitted, cost_returned, waited
            try:
                if how == "try":
                    if not limiter.try_acquire(key, cost):
                        refused += 1
                        return
                    passed, cost_admitted = passed + 1, cost_admitted + cost
                    return
                if how == "enter":
                    async with limiter.acquire(key, cost, max_wait) as permit:
                        pass
                else:
                    permit = await limiter.acquire(key, cost, max_wait)
            except RateLimited:
                refused += 1
                return
            passed, cost_admitted = passed + 1, cost_admitted + cost
            waited += permit.waited
            if how == "cancel":
                permit.cancel()
                cost_returned += cost
            elif how == "adjust":
                permit.adjust(cost + 1.5)
                cost_admitted += 1.5

        for gap, key, cost, max_wait, how in calls:
            await clock.advance(gap)
            task = asyncio.create_task(call(key, cost, max_wait, how))
            tasks.append(task)
            await clock.settle()
            if how == "give up":
                task.cancel()
                await clock.settle()
            check_against_statistics(exposed(registry), limiter)
        await clock.advance(100)
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        gave_up = sum(isinstance(one, asyncio.CancelledError) for one in ended)
        values = exposed(registry)
        check_against_statistics(values, limiter)
        reasons = ("quota", "timeout", "queue_full", "cost_too_high", "overload")
        told = {one: of(values, "rejected_total", reason=one) for one in reasons}
        assert sum(told.values()) == refused
        assert of(values, "rejected_total", reason="cancelled") == gave_up
        assert of(values, "admitted_total") == passed
        assert of(values, "cost_admitted_total") == pytest.approx(cost_admitted)
        assert of(values, "cost_returned_total") == pytest.approx(cost_returned)
        assert of(values, "wait_seconds_sum") == pytest.approx(waited)

    asyncio.run(main())


async def test_waits_are_counted_in_their_buckets(registry: CollectorRegistry) -> None:
    clock = FakeClock()
    limiter = Limiter("1/200ms", name="search", clock=clock)
    metrics.register(limiter, registry=registry)
    tasks = [asyncio.create_task(limiter.acquire("a").__aenter__()) for _ in range(4)]
    await clock.advance(1)
    await asyncio.gather(*tasks)
    values = exposed(registry)
    by_bound = {bound: of(values, "wait_seconds_bucket", le=repr(bound)) for bound in WAIT_BOUNDS}
    assert by_bound == {
        bound: 1 + (bound >= 0.2) + (bound >= 0.4) + (bound >= 0.6) for bound in WAIT_BOUNDS
    }
    assert of(values, "wait_seconds_bucket", le="+Inf") == 4
    assert of(values, "wait_seconds_sum") == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("limit", "sub_windows", "burst", "near"),
    [(100, 32, None, 20), (100, None, None, 20), (10, 32, None, 2), (1, 32, None, 1), (9, 4, 9, 2)],
)
async def test_near_limit_is_every_admission_above_four_fifths(
    limit: int, sub_windows: int | None, burst: float | None, near: int
) -> None:
    def made(*more: str) -> Limiter:
        return Limiter(
            f"{limit}/min", *more, sub_windows=sub_windows, burst=burst, clock=FakeClock()
        )

    async def entered(limiter: Limiter) -> None:
        async with limiter.acquire("a"):
            pass

    for limiter in (made(), made("1000/h")):
        for _ in range(limit):
            await entered(limiter)
        assert limiter.statistics().near_limit == near
    limiter = made()
    for _ in range(limit + 5):
        limiter.try_acquire("a")
    assert limiter.statistics().near_limit == near
    limiter = made()
    for _ in range(limit):
        await limiter.acquire("a")
    assert limiter.statistics().near_limit == near


async def test_near_limit_is_counted_where_limits_are_bent_and_in_the_middleware() -> None:
    async def app(scope: object, receive: object, send: object) -> None: ...

    clock = FakeClock()
    bent = Limiter("100/s", warm_up=WarmUp(over=0), clock=clock)
    plain = Limiter("100/s", clock=clock)
    wrapped = RateLimitMiddleware(app, limiter=plain, headers=None)
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("1.2.3.4", 5)}
    for _ in range(100):
        async with bent.acquire("a"):
            pass
        await wrapped(dict(scope), None, None)  # type: ignore[arg-type]
    assert plain.statistics().admitted == 100
    assert bent.statistics().near_limit == plain.statistics().near_limit == 20


async def test_the_limits_are_told_as_configured_and_as_they_are(
    registry: CollectorRegistry,
) -> None:
    clock = FakeClock()
    warm_up = WarmUp(start=0.5, over=10)
    limiter = Limiter("100/s", "60/s", "2000/min", name="search", warm_up=warm_up, clock=clock)
    metrics.register(limiter, registry=registry)
    values = exposed(registry)
    assert of(values, "limit_configured", per="s") == 60, "the lower of the two binds"
    assert of(values, "limit", per="s") == 30
    assert of(values, "limit", per="min") == 1000
    assert of(values, "limit_period_seconds", per="min") == 60
    assert of(values, "warm_up_ratio") == 0
    limiter.update("80/s", "5000/h")
    values = exposed(registry)
    assert of(values, "limit_configured", per="s") == 80
    assert of(values, "limit_configured", per="h") == 5000
    assert ("aiolimit_limit", frozenset({"limiter": "search", "per": "min"}.items())) not in values


async def test_the_load_controller_is_told_once_however_many_limiters_share_it(
    registry: CollectorRegistry,
) -> None:
    controller = LoadController(sensors={"queue depth": lambda: 0.5})
    limiters = [Limiter("100/s", name=name, load=controller) for name in ("one", "two")]
    metrics.register(*limiters, registry=registry)
    async with controller, limiters[0].acquire("a"), limiters[1].acquire("a"):
        values = exposed(registry)
    labels = frozenset({"controller": "default"}.items())
    assert values["aiolimit_load_in_flight", labels] == 2
    assert values["aiolimit_load_in_flight_limit", labels] == controller.state.cap
    for sensor, is_up in controller.sensors().items():
        which = frozenset({"controller": "default", "sensor": sensor}.items())
        assert values["aiolimit_load_sensor_up", which] in (is_up, True)
    assert sum(value for (name, _), value in values.items() if name.endswith("_binding")) == 1


def test_a_limiter_registered_again_is_told_once(registry: CollectorRegistry) -> None:
    limiter = Limiter("10/s", name="search")
    metrics.register(limiter, limiter, registry=registry)
    metrics.register(limiter, registry=registry)
    limiter.try_acquire("a")
    assert of(exposed(registry), "admitted_total") == 1
    other = CollectorRegistry()
    metrics.register(limiter, registry=other)
    assert of(exposed(other), "admitted_total") == 1


def test_two_of_one_name_are_told_as_one(registry: CollectorRegistry) -> None:
    """A stack that its framework builds again, and two applications in one process."""
    first, second = Limiter("10/s", name="search"), Limiter("10/s", name="search")
    metrics.register(first, registry=registry)
    metrics.register(second, registry=registry)
    first.try_acquire("a")
    second.try_acquire("a", cost=3)
    values = exposed(registry)
    assert of(values, "admitted_total") == 2
    assert of(values, "cost_admitted_total") == 4
    assert of(values, "limit_configured", per="s") == 20
    assert of(values, "limit_period_seconds", per="s") == 1


def test_two_that_are_not_the_same_are_warned_of(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    limiters = [Limiter(rate) for rate in ("3/s", "3/s", "5/s", "7/s")]
    metrics.register(*limiters, registry=registry)
    told = [record.message for record in caplog.records if "different rates" in record.message]
    assert told == [
        (
            "two limiters with different rates are called 'default', and are told as one: "
            "give each a name of its own"
        )
    ]


def test_what_has_gone_is_still_counted(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = Limiter("2/s", name="search", clock=FakeClock())
    metrics.register(limiter, registry=registry)
    exposed(registry)
    for _ in range(5):
        limiter.try_acquire("a")
    gc.collect()  # what other tests have left
    with caplog.at_level(logging.WARNING, "aiolimit.metrics"):
        caplog.clear()
        del limiter
        gc.collect()
    values = exposed(registry)
    assert of(values, "admitted_total") == 2
    assert of(values, "rejected_total", reason="quota") == 3
    assert ("aiolimit_waiting", frozenset({"limiter": "search"}.items())) not in values
    (record,) = caplog.records
    assert record.message == (
        "limiter 'search' is watched for metrics, but nobody holds it any more: it was collected "
        "as garbage, its counts stay as they are"
    )
    again = Limiter("2/s", name="search", clock=FakeClock())
    metrics.register(again, registry=registry)
    again.try_acquire("a")
    assert of(exposed(registry), "admitted_total") == 3


def test_the_counts_of_a_controller_stay_with_the_last_of_its_limiters(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    controller = LoadController()
    controller.gate.early = 7
    limiters = [Limiter("1/s", name=name, load=controller) for name in "ab"]
    metrics.register(*limiters, registry=registry)
    which = "aiolimit_load_rejected_early_total", frozenset({"controller": "default"}.items())
    for left in (1, 0):
        del limiters[left:]
        gc.collect()
        assert exposed(registry)[which] == 7


async def test_a_controller_whose_limiters_are_made_again_is_counted_once(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    controller = LoadController()
    which = "aiolimit_load_admitted_total", frozenset({"controller": "default"}.items())
    async with controller:
        for built in range(1, 4):
            limiter = Limiter("1000/s", name="search", load=controller)
            metrics.register(limiter, registry=registry)
            for _ in range(10):
                async with limiter.acquire("a"):
                    pass
            values = exposed(registry)
            assert values[which] == of(values, "admitted_total") == 10 * built
            del limiter
            gc.collect()
            assert exposed(registry)[which] == controller.admitted == 10 * built
    assert exposed(registry)[which] == 30


def test_a_registry_that_was_cleaned_can_be_used_again(registry: CollectorRegistry) -> None:
    limiter = Limiter("10/s", name="search")
    metrics.register(limiter, registry=registry)
    limiter.try_acquire("a")
    for collector in list(registry._collector_to_names):
        registry.unregister(collector)
    assert not exposed(registry)
    metrics.register(limiter, registry=registry)
    assert of(exposed(registry), "admitted_total") == 1


def test_who_was_watched_for_a_while_keeps_nothing_of_it() -> None:
    limiter = Limiter("10/s")
    for _ in range(20):
        metrics.register(limiter, registry=CollectorRegistry())
        gc.collect()
    assert len(limiter._watchers) == 1


def test_whoever_copies_a_limiter_or_a_controller_gets_the_same(
    registry: CollectorRegistry,
) -> None:
    """Litestar copies the handlers of a controller deeply, with all that they have."""
    controller = LoadController()
    limiter = Limiter("10/s", name="search", load=controller)
    metrics.register(limiter, registry=registry)
    for one in (limiter, controller):
        assert copy.copy(one) is one
        assert copy.deepcopy({"one": [one]})["one"][0] is one
        with pytest.raises(TypeError, match="is of this process"):
            pickle.dumps(one)


async def test_limiters_may_go_while_their_controller_counts(registry: CollectorRegistry) -> None:
    """Each is in a cycle, so the collector of garbage takes it whenever it likes."""
    controller = LoadController()
    kept = [Limiter("1000/s", load=controller, name=f"kept {number}") for number in range(50)]
    metrics.register(*kept, registry=registry)
    which = "aiolimit_load_admitted_total", frozenset({"controller": "default"}.items())
    before = gc.get_threshold()
    gc.set_threshold(20, 2, 2)
    try:
        async with controller:
            for number in range(300):
                made = Limiter("1000/s", load=controller)
                made_permit = await made.acquire()
                assert made_permit.cost == 1
                del made, made_permit
                await kept[number % 50].acquire()
                assert controller.admitted == 2 * (number + 1)
    finally:
        gc.set_threshold(*before)
    values = exposed(registry)
    assert values[which] == 600
    assert values["aiolimit_exporter_errors_total", frozenset()] == 0
    assert len(controller._limiters) < 350


def test_a_controller_that_goes_with_its_limiters_has_counted_them(
    registry: CollectorRegistry,
) -> None:
    which = "aiolimit_load_admitted_total", frozenset({"controller": "default"}.items())

    async def serve(calls: int) -> None:
        controller = LoadController()
        limiter = Limiter("1000/s", name="search", load=controller)
        metrics.register(limiter, registry=registry)
        async with controller:
            for _ in range(calls):
                await limiter.acquire()

    for calls, in_all in ((100, 100), (7, 107)):
        asyncio.run(serve(calls))
        gc.collect()
        values = exposed(registry)
        assert of(values, "admitted_total") == values[which] == in_all
        gone = "aiolimit_load_share_ratio", frozenset({"controller": "default"}.items())
        assert gone not in values, "gauges are of those that run"


@pytest.mark.parametrize("what", ["limiter", "controller", "sensor"])
def test_a_name_that_cannot_be_written_is_refused(what: str) -> None:
    name = "\ud800"
    with pytest.raises(ValueError, match=r"must be text that UTF-8 can hold, not '\\ud800'"):
        if what == "limiter":
            Limiter("1/s", name=name)
        elif what == "controller":
            LoadController(name=name)
        else:
            LoadController(sensors={name: lambda: 0.0})


def test_any_name_that_can_be_written_is_read_back(registry: CollectorRegistry) -> None:
    names = ['a "quoted" one', "two\nlines", "back\\slash", "naïve 制限", "{}=,"]
    limiters = [Limiter("1/s", name=name) for name in names]
    metrics.register(*limiters, registry=registry)
    for name in names:
        assert of(exposed(registry), "admitted_total", name) == 0
    text: bytes = open_metrics(registry)  # type: ignore[no-untyped-call]
    found = {
        sample.labels["limiter"]
        for family in strictly(text.decode())  # type: ignore[no-untyped-call]
        for sample in family.samples
        if "limiter" in sample.labels
    }
    assert found == set(names)


def test_costs_beyond_all_numbers_stop_no_scrape(registry: CollectorRegistry) -> None:
    limiter = Limiter("1/s", name="search")
    metrics.register(limiter, registry=registry)
    for _ in range(3):
        limiter.try_acquire("a", cost=1e300, limit=UNLIMITED)
        limiter.try_acquire("a", cost=1.5e308, limit=UNLIMITED)
    assert of(exposed(registry), "cost_admitted_total") == float("inf")


def test_what_cannot_be_read_is_left_out_and_logged_once(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    clock = StoppingClock()
    broken = Limiter("10/s", name="broken", clock=clock, warm_up=WarmUp())
    metrics.register(broken, Limiter("10/s", name="search"), registry=registry)
    metrics.register(sound := Limiter("10/s", name="sound"), registry=registry)
    sound.try_acquire("a")
    clock.fails = True
    for _ in range(3):
        values = exposed(registry)
        assert of(values, "admitted_total", "sound") == 1
        assert of(values, "admitted_total", "broken") == 0
        assert ("aiolimit_warm_up_ratio", frozenset({"limiter": "broken"}.items())) not in values
    assert values["aiolimit_exporter_errors_total", frozenset()] == 6
    messages = [record.message for record in caplog.records if "cannot be read" in record.message]
    why = "of 'broken' cannot be read and is left out: OSError('the clock stopped')"
    assert messages == [f"aiolimit_limit {why}", f"aiolimit_warm_up_ratio {why}"]


async def test_a_collector_of_someone_elses_that_raises_fails_no_request() -> None:
    class Raises:
        def collect(self) -> Iterator[Any]:
            raise RuntimeError("a broken exporter")

    registry = CollectorRegistry()
    limiter = Limiter("10/s")
    metrics.register(limiter, registry=registry)
    registry.register(Raises())
    with pytest.raises(RuntimeError, match="a broken exporter"):
        generate_latest(registry)
    async with limiter.acquire("a"):
        pass
    assert limiter.statistics().admitted == 1


def test_a_name_that_is_taken_is_one_clear_error(registry: CollectorRegistry) -> None:
    Counter("aiolimit_admitted", "of somebody else", registry=registry)
    limiter = Limiter("10/s", name="search")
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        metrics.register(limiter, registry=registry)
    metrics.register(limiter, registry=CollectorRegistry())


@pytest.mark.parametrize("bad", ["search", None, object()])
def test_only_limiters_are_registered(bad: object, registry: CollectorRegistry) -> None:
    good = Limiter("1/s")
    with pytest.raises(TypeError, match=re.escape(f"register takes limiters, not {bad!r}")):
        metrics.register(good, bad, registry=registry)  # type: ignore[arg-type]
    assert not exposed(registry), "before anything changes"
    with pytest.raises(TypeError, match="registry must be a CollectorRegistry, not 'here'"):
        metrics.register(good, registry="here")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=re.escape(f"register takes limiters, not {bad!r}")):
        otel.register(good, bad)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="meter_provider must be a MeterProvider or None, not 3"):
        otel.register(good, meter_provider=3)  # type: ignore[arg-type]


def test_a_counter_never_goes_back_while_threads_read_it(registry: CollectorRegistry) -> None:
    """Costs below 1 are counted in two additions, which a thread may see half done."""
    limiter = Limiter("1000000/s", name="search")
    metrics.register(limiter, registry=registry)
    seen: list[Values] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.append(exposed(registry))

    async def work() -> None:
        for number in range(20_000):
            async with limiter.acquire("a", cost=number % 3):
                pass

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=read)
    thread.start()
    try:
        asyncio.run(work())
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)
    assert len(seen) > 1
    counters = [which for which in seen[0] if not which[0].endswith(("_keys", "_in_flight"))]
    for earlier, later in pairwise(seen):
        for which in counters:
            assert later[which] >= earlier[which], which


def test_no_label_holds_a_key(registry: CollectorRegistry) -> None:
    limiter = Limiter("1/s", name="search", max_keys=2, clock=FakeClock())
    metrics.register(limiter, registry=registry)
    lines = len(generate_latest(registry).splitlines())
    for number in range(100):
        limiter.try_acquire(f"secret-{number}", limit=number)
    text = generate_latest(registry).decode()
    assert "secret" not in text
    assert len(text.splitlines()) == lines


def test_promtool_finds_nothing_to_complain_of(registry: CollectorRegistry) -> None:
    controller = LoadController()
    limiter = Limiter("10/s", "100/min", name="search", load=controller, shadow=True)
    metrics.register(limiter, registry=registry)
    done = subprocess.run(
        [promtool(), "check", "metrics"], input=generate_latest(registry), capture_output=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_every_metric_has_a_name_that_operators_know_and_says_what_to_do() -> None:
    for instrument in INSTRUMENTS:
        assert re.fullmatch(r"aiolimit_[a-z_]+", instrument.name)
        assert not instrument.name.endswith("_total")
        assert instrument.help[0].isupper() or instrument.help[0].isdigit()
        assert instrument.help.endswith(".")
        assert len(instrument.help) > 60
        assert instrument.name.endswith("_seconds") == (instrument.unit == "s")
        assert len(set(label_names(instrument))) == len(label_names(instrument))


def test_nothing_is_registered_by_an_import() -> None:
    source = (
        "import aiolimit.metrics, prometheus_client\n"
        "print('aiolimit' in prometheus_client.generate_latest().decode())"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_a_limiter_may_be_left_to_the_end_of_the_process() -> None:
    source = (
        "from aiolimit import Limiter, metrics\n"
        "limiter = Limiter('1/s')\n"
        "metrics.register(limiter)\n"
    )
    done = subprocess.run([sys.executable, "-X", "dev", "-c", source], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


async def test_the_application_exposes_them_beside_itself() -> None:
    registry = CollectorRegistry()
    limiter = Limiter("10/s", name="search")
    metrics.register(limiter, registry=registry)
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
    await make_asgi_app(registry)(scope, receive, send)
    assert b'aiolimit_admitted_total{limiter="search"} 0.0' in sent[-1]["body"]


# OpenTelemetry


def observed(data: MetricsData | None) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    assert data is not None
    points: Any = [
        (metric.name, point)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    ]
    return {(name, frozenset(point.attributes.items())): point.value for name, point in points}


async def test_opentelemetry_is_told_the_same(registry: CollectorRegistry) -> None:
    clock = FakeClock()
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    controller = LoadController(clock=clock)
    options: dict[str, Any] = {"clock": clock, "load": controller}
    limiters = [
        Limiter("3/s", name="search", warm_up=WarmUp(), **options),
        Limiter("2/min", name="shadow", shadow=True, **options),
    ]
    otel.register(*limiters, meter_provider=provider)
    otel.register(limiters[0], meter_provider=provider)
    metrics.register(*limiters, registry=registry)
    async with controller:
        for limiter in limiters:
            for cost in (1, 1, 2, 1, 7):
                limiter.try_acquire("a", cost)
        waiting = asyncio.create_task(limiters[0].acquire("a").__aenter__())
        await clock.advance(5)
        await waiting
        values = exposed(registry)
        told = observed(reader.get_metrics_data())
    unmatched = dict(told)
    for (name, labels), value in values.items():
        base = re.sub(r"_total$|_seconds$|_ratio$|_seconds_total$", "", name)
        attributes = {
            label if label == "le" else f"aiolimit.{label}": text for label, text in labels
        }
        if "wait_seconds" in name:
            if name.endswith("_count"):
                continue  # that of the bucket without a bound
            base = "aiolimit_wait_time" if name.endswith("_sum") else "aiolimit_wait_count"
            if attributes.get("le", "+Inf") != "+Inf":
                attributes["le"] = f"{float(attributes['le']):g}"
        parts = base.split("_", 2)
        dotted = ".".join(parts) if parts[1] in ("load", "wait") else base.replace("_", ".", 1)
        if base in ("aiolimit_waiting", "aiolimit_warm_up"):
            dotted = base.replace("_", ".", 1)
        assert unmatched.pop((dotted, frozenset(attributes.items()))) == value, name
    assert not unmatched
    await provider_shutdown(provider)


async def provider_shutdown(provider: MeterProvider) -> None:
    await asyncio.to_thread(provider.shutdown)


def test_who_registers_before_the_provider_is_set_and_who_after_are_both_told() -> None:
    source = (
        "from opentelemetry import metrics\n"
        "from opentelemetry.sdk.metrics import MeterProvider\n"
        "from opentelemetry.sdk.metrics.export import InMemoryMetricReader\n"
        "from aiolimit import Limiter, otel\n"
        "limiters = [Limiter('1/s', name=name) for name in 'abcd']\n"
        "reader = InMemoryMetricReader()\n"
        "provider = MeterProvider([reader])\n"
        "otel.register(limiters[0])\n"
        "metrics.set_meter_provider(provider)\n"
        "otel.register(limiters[1])\n"
        "otel.register(limiters[2], meter_provider=provider)\n"
        "otel.register(limiters[3], meter_provider=metrics.get_meter_provider())\n"
        "data = reader.get_metrics_data()\n"
        "(told,) = data.resource_metrics[0].scope_metrics\n"
        "found = [one for one in told.metrics if one.name == 'aiolimit.admitted']\n"
        "points = [point for one in found for point in one.data.data_points]\n"
        "print(*sorted(point.attributes['aiolimit.limiter'] for point in points))\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.stdout == "a b c d\n", done.stderr


# Adjustments of the load controller


def state(**changes: Any) -> LoadState:
    usual = {"cost": 0.01, "rate": 97.0, "share": 1.0, "factor": 1.0}
    return LoadState(**{**usual, **changes})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rate": 48.5, "cost": 0.02}, ("down", "cost")),
        ({"rate": 194.0, "cost": 0.005}, ("up", "cost")),
        ({"rate": 48.5, "share": 0.5}, ("down", "share")),
        ({"rate": 60.0}, ("down", "refusals")),
        ({"rate": 38.8, "factor": 0.4, "binding": "memory"}, ("down", "memory")),
        ({"rate": 38.8, "cost": 0.011, "factor": 0.44, "binding": "gc"}, ("down", "gc")),
        ({"rate": 150.0, "blind": 9.0}, ("up", "blind")),
        ({"rate": 90.0, "cost": 0.0108}, None),
    ],
)
def test_an_adjustment_is_told_with_what_moved_the_rate_most(
    changes: dict[str, Any], expected: tuple[str, str] | None
) -> None:
    adjustments = Adjustments()
    adjustments.see(state())
    adjustments.see(state(**changes))
    adjustments.see(state(**changes))
    counted = {which: count for which, count in adjustments.counts.items() if count}
    assert counted == ({} if expected is None else {expected: 1})


def test_a_pressure_that_goes_is_what_raises_the_rate() -> None:
    adjustments = Adjustments()
    adjustments.see(state(rate=38.8, factor=0.4, binding="memory"))
    adjustments.see(state())
    assert adjustments.counts["up", "memory"] == 1


def test_many_small_steps_are_one_adjustment_when_they_add_up() -> None:
    adjustments = Adjustments()
    for step in range(40):
        adjustments.see(state(rate=97.0 - step, cost=0.97 / (97.0 - step)))
    assert adjustments.counts["down", "cost"] == 2


def test_what_is_not_known_yet_is_no_adjustment() -> None:
    adjustments = Adjustments()
    for one in (LoadState(), state(), LoadState(), state(rate=10.0, cost=0.1)):
        adjustments.see(one)
    assert not any(adjustments.counts.values())
