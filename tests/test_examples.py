"""Each example, run as a user would run it."""

import asyncio
import os
import re
import shutil
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any, cast

import http_sf
import httpx2
import pytest

from tests.serving import ROOT, free_port, run, running
from tests.support import worst


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-key"}


def execute(database: Path, statement: str) -> None:
    with sqlite3.connect(database) as table:
        table.execute(statement)
    table.close()


async def test_the_gateway(tmp_path: Path) -> None:
    database = tmp_path / "gateway.db"
    gateway = ("examples/gateway.py", "--database", str(database))
    assert await run(*gateway, "--create") == (
        0,
        f"made {database} with the users alice, bob, carol, dave and erin\n",
    )
    async with (
        running("examples/backend.py", "--port", "0") as backend,
        running(
            *gateway, "--backend", backend, "--port", "0", GATEWAY_OPERATOR_KEY="secret"
        ) as address,
        httpx2.AsyncClient(base_url=address) as client,
    ):
        answers = [await client.get("/hello", headers=bearer("alice")) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
        assert answers[0].json() == {"path": "/hello", "method": "GET", "user": "alice"}
        refused = answers[-1]
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert refused.headers["ratelimit-policy"] == '"quota";q=3;w=60'
        assert refused.json()["violated-policies"] == ["quota"]
        assert refused.json()["retry-after"] == int(refused.headers["retry-after"])

        execute(database, "UPDATE users SET requests_per_minute = 5 WHERE name = 'alice'")
        codes = [(await client.get("/", headers=bearer("alice"))).status_code for _ in range(3)]
        assert codes == [200, 200, 429], "a higher limit counts from the next request on"
        execute(database, "UPDATE users SET requests_per_minute = 0 WHERE name = 'alice'")
        codes = [(await client.get("/", headers=bearer("alice"))).status_code for _ in range(9)]
        assert codes == [200] * 9, "0 is no limit"

        forged = {**bearer("bob"), "x-user": "alice", "x-extra": "passed on"}
        answer = await client.post("/things?n=1", headers=forged, content=b"body")
        assert answer.json() == {"path": "/things", "method": "POST", "user": "bob"}

        for headers, code, said in (
            ({}, 401, "send your key as 'Authorization: Bearer <key>'"),
            ({"authorization": "Basic eDp5"}, 401, "send your key"),
            ({"authorization": "Bearer"}, 401, "send your key"),
            (bearer("nobody"), 401, "unknown key"),
            (bearer("x' OR '1'='1"), 401, "unknown key"),
            (bearer("carol"), 402, "no balance left"),
            (bearer("dave"), 403, "this account is closed"),
        ):
            answer = await client.get("/", headers=headers)
            assert answer.status_code == code
            assert said in answer.json()["error"]
            assert ("www-authenticate" in answer.headers) == (code == 401)

        # Many at once: over what the backend takes they wait their turn.
        burst = [client.get("/", headers=bearer("erin")) for _ in range(40)]
        answers = await asyncio.gather(*burst)
        assert {answer.status_code for answer in answers} == {200}
        assert max(float(answer.headers["x-waited"]) for answer in answers) > 0.5

        assert (await client.get("/-/status", headers=bearer("alice"))).status_code == 403
        status = await client.get("/-/status", headers={"authorization": "Bearer secret"})
        assert status.json()["users"]["bob"] == {"limit": 60, "remaining": 59, "waiting": 0}
        assert "25/s configured, burst 10" in status.json()["pace"]

        await only_operators(client, "gateway", ["quota", "pace", "trial"])
        told = await client.get("/-/metrics/", headers={"authorization": "Bearer secret"})
        passed = re.search(r'aiolimit_admitted_total\{limiter="quota"\} (\d+)', told.text)
        assert passed
        assert int(passed[1]) == 5 + 9 + 1 + 40, "all that were answered by the backend"
        assert 'aiolimit_shadow_rejected_total{limiter="trial",reason="quota"}' in told.text


async def test_the_gateway_when_the_backend_or_the_table_is_gone(tmp_path: Path) -> None:
    database = tmp_path / "gateway.db"
    gateway = ("examples/gateway.py", "--database", str(database), "--port", "0")
    assert (await run(*gateway, "--create"))[0] == 0
    async with (
        running(*gateway, "--backend", "http://127.0.0.1:9") as address,
        httpx2.AsyncClient(base_url=address) as client,
    ):
        answer = await client.get("/", headers=bearer("alice"))
        assert answer.status_code == 502
        assert "the backend does not answer" in answer.json()["error"]
        assert (await client.get("/-/status", headers=bearer("alice"))).status_code == 502
        execute(database, "UPDATE users SET balance = 'much' WHERE name = 'bob'")
        answer = await client.get("/", headers=bearer("bob"))
        assert answer.status_code == 503
        execute(database, "ALTER TABLE users RENAME TO others")
        answer = await client.get("/", headers=bearer("alice"))
        assert answer.status_code == 503
        assert answer.json() == {"error": "the user table cannot be read"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no database file"),
        (b"", "no such table: users"),
        (b"not a database at all" * 100, "file is not a database"),
    ],
)
async def test_a_missing_or_broken_database(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    database = tmp_path / "users.db"
    if content is not None:
        database.write_bytes(content)
    status, output = await run("examples/gateway.py", "--database", str(database))
    assert status != 0
    assert said in output
    assert len(output.strip().splitlines()) == 1


def fields_of(said: str) -> tuple[int, dict[str, list[str]]]:
    """The status and the headers that `curl -i` shows."""
    first, _, rest = said.partition("\r\n")
    headers: dict[str, list[str]] = {}
    for line in rest.partition("\r\n\r\n")[0].splitlines():
        name, _, value = line.partition(":")
        headers.setdefault(name.lower(), []).append(value.strip())
    return int(first.split()[1]), headers


async def said_to_curl(url: str, *options: str) -> str:
    """What `curl -i` prints; where there is no curl, what it would have read."""
    if shutil.which("curl"):
        process = await asyncio.create_subprocess_exec(
            *("curl", "-si", *options, url), stdout=asyncio.subprocess.PIPE
        )
        return (await process.communicate())[0].decode()
    host, _, path = url.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    reader, writer = await asyncio.open_connection(name, int(port))
    lines = [f"GET /{path} HTTP/1.1", f"Host: {host}", "Connection: close", *options[1::2]]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    said = (await reader.read()).decode()
    writer.close()
    return said


async def test_the_fastapi_service() -> None:
    """With curl, its fields read by a parser of structured fields that is not ours."""
    serve = ("-m", "uvicorn", "--no-proxy-headers", "--app-dir", "examples", "fastapi_app:app")
    async with running(*serve, "--port", "0") as address:

        async def curl(path: str, *options: str) -> tuple[int, dict[str, list[str]]]:
            return fields_of(await said_to_curl(address + path, *options))

        assert (await curl("/health"))[0] == 200
        for number in range(12):
            forged = ("-H", f"X-Forwarded-For: 10.0.0.{number}")
            status, headers = await curl("/search?q=ants", *forged)
            assert status == (200 if number < 10 else 429)
            limits: Any = http_sf.parse(headers["ratelimit"][0].encode(), tltype="list")
            policies: Any = http_sf.parse(headers["ratelimit-policy"][0].encode(), tltype="list")
            assert len(headers["ratelimit"]) == len(headers["ratelimit-policy"]) == 1
            assert policies == [("search", {"q": 10, "w": 60}), ("service", {"q": 100, "w": 60})]
            found = dict(limits)
            assert found["service"]["r"] == 99 - number
            assert found["search"]["r"] == max(0, 9 - number)
            if status == 429:
                after = int(headers["retry-after"][0])
                assert found["search"]["t"] <= after <= 60
                assert found["service"]["t"] <= 60
                assert headers["content-type"] == ["application/problem+json"]
        assert (await curl("/health"))[0] == 200
        origin = ("-H", "Origin: https://www.example.com")
        status, headers = await curl("/search?q=ants", *origin)
        assert status == 429
        assert headers["access-control-allow-origin"] == ["https://www.example.com"]
        assert "Retry-After" in headers["access-control-expose-headers"][0]


async def test_the_aiohttp_service() -> None:
    async with (
        running("examples/aiohttp_app.py", "--port", str(free_port())) as address,
        httpx2.AsyncClient(base_url=address) as client,
    ):
        ann, bob = {"x-user": "ann"}, {"x-user": "bob"}
        answers = [await client.post("/upload", headers=ann, content=b"abc") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[0].headers["ratelimit"] == '"api";r=5;t=60'
        assert answers[0].json() == {"bytes": 3}
        assert (await client.get("/search", headers=bob)).status_code == 200
        assert (await client.get("/health", headers=ann)).status_code == 200


async def only_operators(client: httpx2.AsyncClient, title: str, limiters: list[str]) -> None:
    """The page and the metrics of a service are there, and nobody else gets to see them."""
    paths = ("/-/dashboard", "/-/dashboard/", "/-/dashboard/state", "/-/metrics", "/-/metrics/")
    for path in paths:
        for headers, query in (({}, ""), (bearer("alice"), ""), ({}, "?operator=alice-key")):
            answer = await client.get(path + query, headers=headers)
            assert answer.status_code == 403, (path, headers, query)
            assert "limiter" not in answer.text
        answer = await client.get(f"{path}?operator=secret", follow_redirects=True)
        assert answer.status_code == 200
        assert "aiolimit" in answer.text or "limiters" in answer.text
    state = await client.get("/-/dashboard/state?operator=secret")
    assert state.json()["title"] == title
    assert list(state.json()["limiters"]) == limiters


async def test_the_busy_service_and_its_operator() -> None:
    async with (
        running("examples/busy.py", "--port", "0", BUSY_OPERATOR_KEY="secret") as address,
        httpx2.AsyncClient(base_url=address, timeout=30) as client,
    ):
        await only_operators(client, "busy", ["busy"])
        work = "/-/work?milliseconds=1"
        assert (await client.post(work)).status_code == 403
        assert (await client.post(work, headers={"authorization": "secret"})).status_code == 403
        operator = {"authorization": "Bearer secret"}
        assert (await client.post(work, headers=operator)).json()["in_flight"] == 0
        # What begins like an operator's path is limited all the same, and counted.
        before = (await client.get("/-/dashboard/state?operator=secret")).json()
        assert (await client.get("/-/else")).status_code == 200
        after = (await client.get("/-/dashboard/state?operator=secret")).json()
        counts = [
            one["limiters"]["busy"]["metrics"]["aiolimit_admitted"][""] for one in (before, after)
        ]
        assert counts[1] == counts[0] + 1


async def test_a_key_that_is_set_and_empty_makes_nobody_an_operator() -> None:
    async with (
        running("examples/busy.py", "--port", "0", BUSY_OPERATOR_KEY="") as address,
        httpx2.AsyncClient(base_url=address, timeout=30) as client,
    ):
        for path in ("/-/status", "/-/metrics/", "/-/dashboard/", "/-/dashboard/?operator="):
            assert (await client.get(path)).status_code == 403
            answer = await client.get(path, headers={"authorization": "Bearer"})
            assert answer.status_code == 403
        assert (await client.post("/-/work?milliseconds=1")).status_code == 403


async def test_the_service_under_overload() -> None:
    async with (
        running("examples/overload.py", "--port", "0") as address,
        httpx2.AsyncClient(base_url=address, timeout=60) as client,
    ):
        explained = (await client.get("/-/explain")).text
        assert "service: 10000/s configured. What this process can do is not known yet" in explained

        answers: list[httpx2.Response] = []
        async with asyncio.timeout(90):
            while "This process can do about" not in explained or len(answers) < 500:
                answers += await asyncio.gather(*(client.get("/") for _ in range(100)))
                explained = (await client.get("/-/explain")).text
        assert {answer.status_code for answer in answers} == {200, 503}
        for answer in answers:
            if answer.status_code == 200:
                assert answer.text == "done\n"
                continue
            after = int(answer.headers["retry-after"])
            assert after >= 1
            assert answer.json()["retry-after"] == after
            assert answer.json()["type"].endswith("#temporary-reduced-capacity")
        assert re.search(
            r"do about \d+/s \([\d.]+ ms CPU a request, .*\); \d+ of \d+ in flight", explained
        )

        port = address.rpartition(":")[2]
        status, output = await run(
            "examples/overload.py", "--port", port, "--load", "2", "--seconds", "2"
        )
        assert status == 0, output
        rows = re.findall(r"(\d+) in time, +(\d+) late, +(\d+) refused, +(\d+) no answer", output)
        assert [sum(map(int, row)) for row in rows] == [200, 200]
        assert sum(int(refused) for _, _, refused, _ in rows) > 0


@pytest.mark.parametrize("name", ["client", "aiohttp_client"])
async def test_the_client(name: str) -> None:
    async with running("examples/backend.py", "--port", "0") as address:
        begun = asyncio.get_running_loop().time()
        status, output = await run(f"examples/{name}.py", f"{address}/pages?q=ants")
        assert status == 0, output
        assert asyncio.get_running_loop().time() - begun > 2.0, "twelve at four a second"
        pages = re.findall(r"page +(\d+)  (\d+) at +[0-9.]+ s, waited [0-9.]+ s", output)
        assert sorted(int(page) for page, _ in pages) == list(range(12))
        assert {code for _, code in pages} == {"200"}
        assert output.endswith("12 of 12 pages\n")


@pytest.mark.parametrize("name", ["client", "aiohttp_client"])
async def test_the_client_without_a_server(name: str) -> None:
    status, output = await run(f"examples/{name}.py", "http://127.0.0.1:9/", "--pages", "2")
    assert status == 1
    assert re.search(r"http://127.0.0.1:9/ does not answer: (ConnectError|Client\w+Error)", output)
    assert output.endswith("0 of 2 pages\n")
    assert "Traceback" not in output


def test_examples_are_a_page_long() -> None:
    short = ("fastapi_app", "aiohttp_app", "client", "aiohttp_client", "backend")
    most = dict.fromkeys(short, 60) | {"overload": 80, "llm_client": 120, "llm_server": 140}
    for name, length in most.items():
        lines = Path("examples", f"{name}.py").read_text().splitlines()
        assert len(lines) <= length, name
    assert sys.version_info >= (3, 11)


async def test_four_workers_keep_one_limit_and_outlive_their_valkey() -> None:
    command = (sys.executable, "examples/workers.py", "--port", "0")
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert process.stdout is not None
    said: list[str] = []

    async def until(pattern: str) -> str:
        """Read on until a line says that; gives what it says."""
        while True:
            line = (await asyncio.wait_for(cast(Any, process.stdout).readline(), 30)).decode()
            assert line, "".join(said)
            said.append(line)
            if found := re.search(pattern, line):
                return found[1]

    passed: list[float] = []
    strange: list[object] = []
    is_over = False

    async def ask(client: httpx2.AsyncClient) -> None:
        while not is_over:
            answer = await client.get("/", headers=bearer("erin"))
            if answer.status_code == 200:
                passed.append(time.monotonic())
            elif answer.status_code != 429:
                strange.append((answer.status_code, answer.text))

    try:
        number = int(await until(r"process (\d+)"))
        address = await until(r"workers on (http://\S+)")
        limits = httpx2.Limits(max_connections=40)
        async with httpx2.AsyncClient(base_url=address, limits=limits, timeout=30) as client:
            await eventually_answers(client)
            askers = [asyncio.create_task(ask(client)) for _ in range(40)]
            while len(passed) < 50:
                await asyncio.sleep(0.05)
            os.kill(number, signal.SIGKILL)
            killed = time.monotonic()
            await until(r"process (\d+)")
            await until(r"(answers) again")  # of those who had something to ask
            back = time.monotonic()
            count = len(passed)
            while len(passed) < count + 40:
                await asyncio.sleep(0.05)
            is_over = True
            await asyncio.gather(*askers)  # none has met a connection that was refused
    finally:
        process.send_signal(signal.SIGINT)
        rest = (await process.communicate())[0].decode()
    assert strange == []
    assert "Traceback" not in "".join(said) + rest
    assert process.returncode == 0
    # Answers are on their way for a while, so seconds are told apart only roughly here; four
    # workers that do not share would let four times as much through.
    assert len(passed) <= 25 * (passed[-1] - passed[0] + 1.5)
    assert worst(passed, 1.0) <= 2 * 25
    meanwhile = sum(killed + 0.5 < at < back for at in passed)
    assert meanwhile >= 0.6 * 25 * (back - killed - 0.5), "each worker has its part of the limit"


async def eventually_answers(client: httpx2.AsyncClient) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            await client.get("/", headers=bearer("erin"))
        except httpx2.TransportError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        else:
            return
