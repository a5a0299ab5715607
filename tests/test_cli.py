"""The command `aiolimit`: the demo with and without a terminal, and how it ends."""

import asyncio
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from aiolimit import cli
from aiolimit.cli.load_screen import summary, wrong
from aiolimit.cli.open_loop import Client
from aiolimit.cli.tally import Second, Status, phases
from tests.serving import ROOT, run, running


def left_behind(folder: Path) -> list[str]:
    """Processes of a demo that was to keep its files in that folder, and that are still there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().decode(errors="replace").split("\0")
            command = (process / "cmdline").read_bytes().decode()
        except OSError:
            continue
        if f"TMPDIR={folder}" in environment:
            found.append(command.replace("\0", " "))
    return found + [path.name for path in folder.glob("aiolimit-demo-*")]


async def test_the_demo_in_plain_lines(tmp_path: Path) -> None:
    status, output = await run("-m", "aiolimit", "demo", "--seconds", "8", TMPDIR=str(tmp_path))
    assert status == 0, output
    assert "\x1b" not in output
    assert re.search(r"the gateway listens on http://127\.0\.0\.1:\d+\n", output)
    assert "The operator: UPDATE users SET requests_per_minute = 45 WHERE name = 'dave'" in output
    counts = re.search(r"(\d+) requests were answered: (\d+) admitted, (\d+) refused", output)
    assert counts
    answered, admitted, refused = map(int, counts.groups())
    assert answered == admitted + refused
    assert refused > 0
    assert re.search(r"carol \(greedy\) got 30 of 5\d at 30 a minute", output)
    dave = re.search(r"dave \(raised half-way\) got (\d+) of", output)
    assert dave
    assert 15 < int(dave.group(1)) <= 45
    assert "waited their turn" in output
    assert re.search(r"erin \d+ admitted, \d+ refused, \d+ waiting", output)
    assert "WRONG" not in output
    assert not left_behind(tmp_path)
    told, second = output.split("The busy service, with a load controller, listens on http://")
    assert "carol" in told
    assert "carol" not in second
    assert re.search(r"\n   1 s  \d+ offered, \d+ in time, \d+ refused, \d+ late, p99 ", second)
    assert re.search(r"\d+ of \d+ in flight, [0-9.]+ ms CPU a request, can do \d+/s\n", second)
    assert re.search(r"busy: 300/s configured; \d+ % warm, so .* This process can do about", second)
    counts = re.search(
        r"(\d+) requests came in 4 s: (\d+) were answered in time \(within 0.5 s\), (\d+) late, "
        r"(\d+) refused with 503",
        second,
    )
    assert counts
    came, in_time, late, turned_away = map(int, counts.groups())
    assert came == in_time + late + turned_away
    assert re.search(r"slow: \d+/s came, [0-9.]+ times what there was CPU for \(20 ms each", second)
    assert re.search(r"; \d+ were refused, the slowest refusal took \d+ ms\.\n", second)
    assert "Nobody told the limiter what a request costs." in second


async def test_one_act_only(tmp_path: Path) -> None:
    demo = ("-m", "aiolimit", "demo", "--seconds", "2", "--act")
    status, output = await run(*demo, "quotas", TMPDIR=str(tmp_path))
    assert status == 0, output
    assert "requests were answered" in output
    assert "busy" not in output
    status, output = await run(*demo, "load", TMPDIR=str(tmp_path))
    assert status == 0, output
    assert "gateway" not in output
    assert "requests came in 4 s" in output


def in_a_terminal(
    folder: Path, seconds: float, *arguments: str, end: int | None = None
) -> tuple[int, str]:
    """Run the demo in a pseudo-terminal; after so many seconds send it a signal, or let it end."""
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "aiolimit", "demo", *arguments],
        cwd=ROOT,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={
            **os.environ,
            "TERM": "xterm-256color",
            "COLUMNS": "120",
            "LINES": "40",
            "TMPDIR": str(folder),
        },
        start_new_session=True,
    )
    os.close(terminal)
    output = b""
    until = time.monotonic() + seconds
    give_up = time.monotonic() + 60
    try:
        while time.monotonic() < give_up:
            if end is not None and time.monotonic() > until:
                process.send_signal(end)
                end = None
            if select.select([main], [], [], 0.1)[0]:
                try:
                    output += os.read(main, 65536)
                except OSError:  # Linux says so where the other end has closed
                    break
    finally:
        process.kill()
        os.close(main)
    return process.wait(), output.decode()


def test_the_demo_in_a_terminal(tmp_path: Path) -> None:
    status, output = in_a_terminal(tmp_path, 60, "--seconds", "5")
    assert status == 0, output
    for column in ("user", "limit/min", "remaining", "admitted", "refused", "waiting"):
        assert column in output
    assert "\x1b[" in output, "drawn anew in place"
    assert set(output) & set("▁▂▃▄▅▆▇█"), "a sparkline"
    assert "requests were answered" in output
    for column in ("phase", "offered", "in time", "late", "p99 ms", "in flight", "cost ms"):
        assert column in output
    assert "can do about" in output, "the sentence of explain()"
    assert "requests came in" in output
    assert not left_behind(tmp_path)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(("seconds", "act"), [(0.3, "both"), (3.0, "both"), (3.0, "load")])
def test_an_interrupted_demo_ends_cleanly(
    end: int, seconds: float, act: str, tmp_path: Path
) -> None:
    status, output = in_a_terminal(tmp_path, seconds, "--act", act, "--seconds", "30", end=end)
    assert "Traceback" not in output
    assert status in ((0,) if seconds > 1 else (0, 1, 130, -end)), output
    if seconds > 1:
        assert "Stopped." in output
    assert not left_behind(tmp_path)


async def test_serve_says_how_to_try_it(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "aiolimit", "demo", "--serve",
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert process.stdout is not None
    said = ""
    try:
        while "Ctrl-C ends it." not in said:
            line = await asyncio.wait_for(process.stdout.readline(), 30)
            assert line, said
            said += line.decode()
        command = re.search(r"curl -i -H \"Authorization: (Bearer dave-key)\" (http://\S+)", said)
        assert command, said
        async with httpx2.AsyncClient(headers={"authorization": command.group(1)}) as client:
            codes = [(await client.get(command.group(2))).status_code for _ in range(17)]
        assert codes == [200] * 15 + [429] * 2
        process.send_signal(signal.SIGINT)
        rest, _ = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 0
        assert rest.decode().strip() == "Stopped."
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    assert not left_behind(tmp_path)


def test_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["demo", "--seconds", "1"], "a number of seconds from 2 to 3600, not '1'"),
        (["demo", "--seconds", "soon"], "not 'soon'"),
        (["demo", "--act", "third"], "invalid choice: 'third'"),
        (["demo", "--act", "load", "--serve"], "--serve is for the gateway"),
        (["demo", "--port", "x"], "a port is a number from 0 to 65535, not 'x'"),
        (["demo", "--port", "65536"], "a port is a number from 0 to 65535, not '65536'"),
        (["damo"], "invalid choice: 'damo'"),
        ([], "required: command"),
    ):
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert caught.value.code == 2
        assert said in capsys.readouterr().err


async def test_the_page_of_the_demo_shows_all_its_services(tmp_path: Path) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    port = str(taken.getsockname()[1])
    status, output = await run("-m", "aiolimit", "demo", "--port", port, TMPDIR=str(tmp_path))
    assert status == 1
    assert f"aiolimit demo: port {port} cannot be had for the page: " in output
    assert not left_behind(tmp_path)
    taken.close()

    async with (
        running("-m", "aiolimit", "demo", "--seconds", "30", "--port", "0") as address,
        httpx2.AsyncClient(base_url=address, timeout=10) as client,
    ):
        page = await client.get("/")
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
        assert "<title>aiolimit</title>" in page.text
        said = (await client.get("/state", params={"key": "alice"})).json()["processes"]
        assert [one["title"] for one in said] == ["gateway", "busy"]
        assert list(said[0]["limiters"]) == ["quota", "pace", "trial"]
        assert "for 'alice'" in said[0]["limiters"]["quota"]["explanation"]
        assert said[1]["controllers"]["default"]["metrics"]["aiolimit_load_in_flight_limit"]
        for service, limiter in (("gateway", "quota"), ("busy", "busy")):
            told = await client.get(f"/{service}/metrics")
            assert f'aiolimit_admitted_total{{limiter="{limiter}"}}' in told.text
            assert told.headers["content-type"].startswith("text/plain; version=")
        assert (await client.get("/nobody/metrics")).status_code == 404


def test_what_is_not_installed_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "_NEEDED", ("rich", "no_such_package"))
    assert cli.main(["demo"]) == 1
    assert capsys.readouterr().err == (
        "aiolimit demo needs no_such_package: install aiolimit-core with its extra 'cli', "
        "in a clone with: pip install -e '.[cli]'\n"
    )


def seconds_of(share: float, *counts: tuple[int, int]) -> list[Second]:
    """The shortest second act, by what was in time and what was refused in each second."""
    parts = phases(10)
    by_second = [Second(phase) for phase in parts for _ in range(phase.seconds)]
    for at, (second, (in_time, refused)) in enumerate(zip(by_second, counts, strict=True)):
        second.offered = in_time + refused
        second.latencies = [0.05] * in_time
        second.refused = refused
        cpu, waited = share * at, (1 - share) * at
        second.statuses = [Status(0, 5.0, 0.01, 95.0, "busy: as said.", cpu, waited)]
    return by_second


@pytest.mark.parametrize(
    ("share", "counts", "said"),
    [
        (1.0, [(55, 0), (55, 0), (48, 77), (47, 78), (48, 77), (55, 0), (50, 5)], []),
        # A noisy machine is not the demo's fault: half of the core, and refusals all the time.
        (0.5, [(45, 10), (45, 10), (24, 99), (20, 105), (9, 116), (40, 15), (30, 25)], []),
        (
            1.0,
            [(55, 0), (55, 0), (0, 125), (9, 116), (3, 122), (55, 0), (55, 0)],
            ["of 'slow' only 12 were answered in time"],
        ),
        (
            1.0,
            [(55, 0), (55, 0), (48, 0), (47, 0), (48, 0), (55, 0), (55, 0)],
            ["of 'slow' nothing was refused"],
        ),
        (
            1.0,
            [(55, 0), (55, 0), (48, 77), (47, 78), (48, 77), (0, 55), (30, 25)],
            ["of 'after' 25 of 55 were refused, though there was CPU for them"],
        ),
    ],
)
def test_what_is_wrong_with_a_load_controller(
    share: float, counts: list[tuple[int, int]], said: list[str]
) -> None:
    found = wrong(seconds_of(share, *counts))
    assert [text.strip() for text in found] == [f"WRONG: {text}." for text in said]


def test_what_else_came_back_is_wrong() -> None:
    by_second = seconds_of(1.0, *[(55, 0)] * 2, *[(48, 77)] * 3, *[(55, 0)] * 2)
    by_second[3].record(3.2, 0.1, 500)
    by_second[6].record(6.5, 10.0, "TimeoutError")
    assert [text.strip() for text in wrong(by_second)] == [
        "WRONG: 1 requests of 'slow' ended with status 500.",
        "WRONG: 1 requests of 'after' ended with TimeoutError.",
    ]
    by_second[-1].statuses.append(Status(2, 5.0, 0.01, 95.0, "busy: as said.", 7.0, 0.0))
    assert wrong(by_second)[2:] == [
        "  WRONG: all were answered, and still 2 are said to be in flight."
    ]
    assert "was sent 1.5 s after the overload" in " ".join(summary(by_second))


async def test_only_its_operator_makes_the_service_slower() -> None:
    async with (
        running("examples/busy.py", "--port", "0", BUSY_OPERATOR_KEY="secret") as address,
        httpx2.AsyncClient(base_url=address) as client,
    ):
        assert (await client.get("/")).json() == {"milliseconds": 10.0}
        operator = {"authorization": "Bearer secret"}
        for headers in ({}, {"authorization": "Bearer None"}, {"authorization": "secret"}):
            assert (await client.get("/-/status", headers=headers)).status_code == 403
            work = await client.post("/-/work?milliseconds=20", headers=headers)
            assert work.status_code == 403
        for nonsense in ("", "?milliseconds=much", "?milliseconds=-1", "?milliseconds=nan"):
            work = await client.post(f"/-/work{nonsense}", headers=operator)
            assert work.status_code == 400
        await client.post("/-/work?milliseconds=2.5", headers=operator)
        assert (await client.get("/")).json() == {"milliseconds": 2.5}
        status = (await client.get("/-/status", headers=operator)).json()
        assert status["in_flight"] == 0
        assert "busy: 300/s configured; " in status["explain"]


async def test_the_client_of_the_open_loop() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while (head := await reader.read(4096)).startswith(b"GET /"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe")
            await asyncio.sleep(0.02)
            if b"/part" in head:
                break
            writer.write(b"llo")
            if b"/last" in head:
                break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, Client(address) as client:
        assert await client.request("GET", "/") == (200, b"hello"), "in two pieces"
        assert await client.request("GET", "/last") == (200, b"hello")
        await asyncio.sleep(0.05)
        assert await client.request("GET", "/") == (200, b"hello")
        assert connections == 2, "kept, and made anew after its end"
        with pytest.raises(ConnectionResetError):
            await client.request("GET", "/part")
        task = asyncio.create_task(client.request("GET", "/"))
        await asyncio.sleep(0.01)
        task.cancel()
        assert await client.request("GET", "/") == (200, b"hello"), "not the rest of another's"
    with pytest.raises(ConnectionRefusedError):
        await Client(address).request("GET", "/")
