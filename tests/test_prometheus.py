"""A real Prometheus watches a real run of the demo: no panel is empty, and all totals are true."""

import asyncio
import contextlib
import math
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2

from tests.programs import prometheus
from tests.prometheus import RULES, expressions
from tests.serving import ROOT, free_port

CONFIGURATION = """
global:
  scrape_interval: 1s
  evaluation_interval: 1s
rule_files: [{rules}]
scrape_configs:
  - job_name: gateway
    metrics_path: /gateway/metrics
    static_configs: [targets: ["{target}"]]
  - job_name: busy
    metrics_path: /busy/metrics
    static_configs: [targets: ["{target}"]]
"""


class Server:
    """A Prometheus, and what it answers."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    async def total(self, expression: str) -> float:
        """The value of an expression that has one."""
        (result,) = (await self._ask("query", query=expression))["result"]
        return float(result["value"][1])

    async def comes_to(self, expression: str, value: float) -> None:
        """Wait until Prometheus, which asks once a second, has seen it: that, and no more."""
        found = math.nan
        try:
            async with asyncio.timeout(20):
                while (found := await self.total(expression)) != value:
                    await asyncio.sleep(0.1)
        except TimeoutError:
            pass
        assert found == value, expression

    async def over(self, expression: str, start: float, end: float) -> list[float]:
        """All values of an expression in that time."""
        answer = await self._ask("query_range", query=expression, start=start, end=end, step="1s")
        return [float(value) for series in answer["result"] for _, value in series["values"]]

    async def rules(self) -> list[dict[str, Any]]:
        groups = (await self._ask("rules"))["groups"]
        return [rule for group in groups for rule in group["rules"]]

    async def now(self) -> float:
        answer = await self._ask("query", query="time()")
        return float(answer["result"][1])

    async def _ask(self, what: str, **asked: object) -> dict[str, Any]:
        answer = (await self._client.get(f"/api/v1/{what}", params=asked)).json()  # type: ignore[arg-type]
        assert answer["status"] == "success", answer
        data: dict[str, Any] = answer["data"]
        return data


@contextlib.asynccontextmanager
async def watching(target: str, folder: Path) -> AsyncIterator[Server]:
    """A Prometheus that scrapes the demo's services."""
    port = free_port()
    configuration = folder / "prometheus.yml"
    configuration.write_text(CONFIGURATION.format(rules=RULES, target=target))
    process = await asyncio.create_subprocess_exec(
        prometheus(),
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
        stdout=subprocess.DEVNULL,
    )
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            async with asyncio.timeout(30):
                while True:
                    with contextlib.suppress(httpx2.HTTPError):
                        if (await client.get("/-/ready")).status_code == 200:
                            break
                    await asyncio.sleep(0.1)
            yield Server(client)
    finally:
        process.terminate()
        await process.wait()


async def said(process: asyncio.subprocess.Process, awaited: str) -> str:
    """What the demo prints until it says that."""
    assert process.stdout is not None
    text = ""
    async with asyncio.timeout(120):
        while awaited not in text:
            line = (await process.stdout.readline()).decode()
            assert line, text
            text += line
    return text


async def test_prometheus_answers_every_panel_and_alert_and_its_totals_are_the_truth(
    tmp_path: Path,
) -> None:
    prometheus()
    demo = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aiolimit", "demo"),
        *("--seconds", "12", "--port", "0", "--stay"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
    )
    try:
        told = await said(demo, "Watch it live, in a browser: ")
        address = re.search(r"http://(127\.0\.0\.1:\d+)/", told)
        assert address
        async with watching(address[1], tmp_path) as server:
            begun = await server.now()
            told += await said(demo, "All is over. The page stays, until Ctrl-C: ")
            # All that its clients have seen, and printed.
            counts = re.search(r"(\d+) requests were answered: (\d+) admitted, (\d+) refused", told)
            load = re.search(
                r"(\d+) requests came in \d+ s: (\d+) were answered in time .*?, (\d+) late, "
                r"(\d+) refused",
                told,
            )
            assert counts, told
            assert load, told
            answered, admitted, refused = map(int, counts.groups())
            came, in_time, late, overloaded = map(int, load.groups())
            rejected = 'aiolimit_rejected_total{reason="%s", limiter="%s"}'
            for expression, truth in (
                ('aiolimit_admitted_total{limiter="quota"}', admitted),
                (rejected % ("quota", "quota"), refused),
                ('aiolimit_admitted_total{limiter="pace"}', admitted),
                ('aiolimit_admitted_total{limiter="trial"}', answered),
                ('aiolimit_admitted_total{limiter="busy"}', in_time + late),
                (rejected % ("overload", "busy"), overloaded),
                ("aiolimit_load_rejected_total", overloaded),
                ("aiolimit_load_admitted_total", in_time + late),
                ("count(up == 1)", 2),
            ):
                await server.comes_to(expression, truth)
            assert refused > 0
            assert overloaded > 0
            assert in_time + late + overloaded == came
            await server.comes_to("sum(aiolimit_in_flight)", 0)
            assert await server.total("sum(aiolimit_exporter_errors_total)") == 0

            ended = await server.now()
            # Everything together, and then the dashboard of each limiter by itself.
            asked = set(expressions("5s"))
            for limiter in ("quota", "pace", "trial", "busy"):
                asked |= {one for one in expressions("5s", limiter) if "limiter.json" in one[0]}
            empty = []
            for where, expression in sorted(asked):
                values = await server.over(expression, begun, ended)
                if not any(math.isfinite(value) for value in values):
                    empty.append(f"{where}: {expression}")
            assert not empty, "\n".join(empty)
            assert len(asked) > 200
            for rule in await server.rules():
                assert rule["health"] == "ok", rule
    finally:
        demo.terminate()
        rest = (await demo.communicate())[0].decode()
    assert demo.returncode == 0, rest
    assert "WRONG" not in told
