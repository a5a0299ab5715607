"""Several workers behind one scrape: the sum is the truth, whoever dies."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.serving import free_port, run, started

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """Two workers of uvicorn's; a client that opens a connection for each request."""
    port = free_port()
    process = await started(
        ("-m", "uvicorn", "tests.workers_app:app", "--workers", "2", "--port", str(port)),
        {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
    )
    limits = httpx2.Limits(max_keepalive_connections=0)
    try:
        async with httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", limits=limits, timeout=30
        ) as client:
            await workers(client, 2)
            yield client
    finally:
        process.terminate()
        said = (await process.communicate())[0].decode()
        assert "Traceback" not in said, said


async def workers(client: httpx2.AsyncClient, count: int) -> set[int]:
    """The process ids of so many workers, once they answer."""
    async with asyncio.timeout(60):
        found: set[int] = set()
        while len(found) < count:
            try:
                found.add(int((await client.get("/pid")).text))
            except httpx2.HTTPError:
                await asyncio.sleep(0.1)
        return found


async def scrape(client: httpx2.AsyncClient) -> Values:
    text = (await client.get("/metrics/")).text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def one(values: Values, name: str, **labels: str) -> float:
    return values[f"aiolimit_{name}", frozenset({"limiter": "workers", **labels}.items())]


async def until(client: httpx2.AsyncClient, name: str, value: float, **labels: str) -> Values:
    """What is told once a value is what it should be."""
    values: Values = {}
    try:
        async with asyncio.timeout(20):
            while True:
                values = await scrape(client)
                if one(values, name, **labels) == value:
                    return values
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"{name} stayed at {one(values, name, **labels)}") from None


async def test_the_sum_over_all_workers_is_what_their_client_counted(
    service: httpx2.AsyncClient,
) -> None:
    answers = Counter[int]()
    admitted = Counter[tuple[str, int]]()
    async with asyncio.timeout(60):
        number = 0
        # Which worker gets a connection is the system's choice, so until each has had some.
        while number < 90 or len({worker for worker, _ in admitted}) < 2:
            answer = await service.get(f"/?{number % 3}")
            answers[answer.status_code] += 1
            if answer.status_code == 200:
                admitted[answer.text, number % 3] += 1
            number += 1
    assert max(admitted.values()) == 10, "each worker lets 10 of each key through"
    await until(service, "admitted_total", answers[200])
    values = await until(service, "rejected_total", answers[429], reason="quota")
    assert one(values, "wait_seconds_count") == answers[200]
    assert one(values, "wait_seconds_bucket", le="0.001") == answers[200]
    assert one(values, "cost_admitted_total") == answers[200]
    # What two workers let through together is the sum of their limits.
    assert one(values, "limit_configured", per="min") == 20
    assert one(values, "limit", per="h") == 2000
    assert one(values, "limit_period_seconds", per="min") == 60
    assert one(values, "warm_up_ratio") == 1
    assert one(values, "keys") == len(admitted)
    assert one(values, "in_flight") == 0
    up = frozenset({"controller": "default", "sensor": "cpu"}.items())
    assert values["aiolimit_load_sensor_up", up] == 1


async def test_counts_survive_a_worker_that_is_killed_and_its_gauges_leave_with_it(
    service: httpx2.AsyncClient,
) -> None:
    both = await workers(service, 2)
    for number in range(40):
        await service.get(f"/?{number}")
    before = await until(service, "admitted_total", 40)
    keys = one(before, "keys")
    assert keys == 40
    os.kill(min(both), signal.SIGKILL)
    async with asyncio.timeout(60):
        while psutil.pid_exists(min(both)) or len(await workers(service, 2)) < 2:
            await asyncio.sleep(0.1)
        while one(values := await scrape(service), "limit", per="min") != 20:
            await asyncio.sleep(0.2)
    assert one(values, "admitted_total") == 40
    assert one(values, "keys") < 40


FORKED = """
import os, sys
from aiolimit import Limiter, metrics
limiter = Limiter("100/s", name="forked")
metrics.register(limiter)
for _ in range(3):
    limiter.try_acquire("parent")
pid = os.fork()
if pid == 0:
    for _ in range(4):
        limiter.try_acquire("child")
    sys.exit()  # in order, so nothing is lost
os.waitpid(pid, 0)
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
limiter.try_acquire("parent")
metrics.register(limiter)  # writes at once
registry = CollectorRegistry()
MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


async def test_what_a_parent_has_counted_is_not_counted_again_by_its_children(
    tmp_path: Path,
) -> None:
    status, said = await run("-c", FORKED, PROMETHEUS_MULTIPROC_DIR=str(tmp_path))
    assert status == 0, said
    assert 'aiolimit_admitted_total{limiter="forked"} 8.0' in said


async def test_what_is_counted_until_the_end_is_written(tmp_path: Path) -> None:
    source = (
        "from aiolimit import Limiter, metrics\n"
        "limiter = Limiter('5/s', name='short')\n"
        "metrics.register(limiter)\n"
        "print([limiter.try_acquire() for _ in range(7)])\n"
    )
    status, said = await run("-c", source, PROMETHEUS_MULTIPROC_DIR=str(tmp_path))
    assert status == 0, said
    shown = (
        "from prometheus_client import CollectorRegistry, generate_latest\n"
        "from prometheus_client.multiprocess import MultiProcessCollector\n"
        "registry = CollectorRegistry()\n"
        "MultiProcessCollector(registry)\n"
        "print(generate_latest(registry).decode())\n"
    )
    _, told = await run("-c", shown, PROMETHEUS_MULTIPROC_DIR=str(tmp_path))
    assert 'aiolimit_admitted_total{limiter="short"} 5.0' in told
    assert 'aiolimit_rejected_total{limiter="short",reason="quota"} 2.0' in told
    assert "aiolimit_keys{" not in told, "gauges leave with their process"


TOLD = """
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
registry = CollectorRegistry()
MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""

CHILD = """
import multiprocessing, time
from aiolimit import Limiter, metrics

def work():
    limiter = Limiter("100/s", name="child")
    metrics.register(limiter)
    print([limiter.try_acquire() for _ in range(5)])

if __name__ == "__main__":
    metrics.register(limiter := Limiter("100/s", name="parent"))
    child = multiprocessing.get_context(METHOD).Process(target=work)
    child.start()
    child.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
async def test_children_of_multiprocessing_lose_nothing_when_they_end(
    method: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(CHILD.replace("METHOD", repr(method)))
    folder = tmp_path / "told"
    folder.mkdir()
    status, said = await run(str(program), PROMETHEUS_MULTIPROC_DIR=str(folder))
    assert status == 0, said
    _, told = await run("-c", TOLD, PROMETHEUS_MULTIPROC_DIR=str(folder))
    assert 'aiolimit_admitted_total{limiter="child"} 5.0' in told
    assert "aiolimit_keys{" not in told, "gauges leave with their process"


GONE = (
    """
import gc
from aiolimit import Limiter, LoadController, WarmUp, metrics
from aiolimit.watch.multiprocess import Flusher
controller = LoadController(name="gone", sensors={"disk": lambda: 3.0})
limiter = Limiter("100/s", name="gone", load=controller, warm_up=WarmUp())
kept = Limiter("100/s", name="kept")
metrics.register(limiter, kept)
kept.update("50/min")
del limiter, controller
gc.collect()
metrics.register(kept)  # writes at once
"""
    + TOLD
)


async def test_gauges_of_what_has_gone_say_nothing_any_more(tmp_path: Path) -> None:
    status, said = await run("-c", GONE, PROMETHEUS_MULTIPROC_DIR=str(tmp_path))
    assert status == 0, said
    for line in (
        'aiolimit_warm_up_ratio{limiter="gone"} 1.0',
        'aiolimit_load_binding{controller="gone",signal="cpu"} 0.0',
        'aiolimit_load_share_ratio{controller="gone"} 1.0',
        'aiolimit_limit{limiter="kept",per="s"} 0.0',
        'aiolimit_limit_period_seconds{limiter="kept",per="s"} 0.0',
        'aiolimit_limit{limiter="kept",per="min"} 50.0',
    ):
        assert line in said, said


async def test_a_folder_that_is_named_too_late_is_one_clear_error(tmp_path: Path) -> None:
    source = (
        "import os, prometheus_client\n"
        "from aiolimit import Limiter, metrics\n"
        f"os.environ['PROMETHEUS_MULTIPROC_DIR'] = {str(tmp_path)!r}\n"
        "try:\n"
        "    metrics.register(Limiter('1/s'))\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
    )
    _, said = await run("-c", source)
    assert said.startswith("PROMETHEUS_MULTIPROC_DIR was set after prometheus_client was imported")


FORKED_IN_A_SCRAPE = """
import os, threading
from prometheus_client import CollectorRegistry, generate_latest
from aiolimit import Limiter, metrics
limiter = Limiter("100/s", name="search")
registry = CollectorRegistry()
metrics.register(limiter, registry=registry)
limiter.try_acquire()
(collector,) = registry._collector_to_names
held, done = threading.Event(), threading.Event()

def scrape():
    with collector.roster._lock:
        held.set()
        done.wait()

thread = threading.Thread(target=scrape)
thread.start()
held.wait()
pid = os.fork()
if pid == 0:
    print(b'aiolimit_admitted_total{limiter="search"} 1.0' in generate_latest(registry), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
done.set()
thread.join()
"""


async def test_a_fork_in_the_middle_of_a_scrape_hangs_no_child() -> None:
    status, said = await run("-W", "ignore", "-c", FORKED_IN_A_SCRAPE)
    assert (status, said) == (0, "True\n")
