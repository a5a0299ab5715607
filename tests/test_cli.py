"""The command `aiolimit`: the demo with and without a terminal, and how it ends."""

import asyncio
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from aiolimit import cli
from tests.serving import ROOT, run


def left_behind(folder: Path) -> list[str]:
    """Processes of a demo that kept its files in that folder, and that are still there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if any(str(folder) in word for word in command):
            found.append(" ".join(command))
    return found


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
    assert not left_behind(tmp_path)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("seconds", [0.3, 3.0])
def test_an_interrupted_demo_ends_cleanly(end: int, seconds: float, tmp_path: Path) -> None:
    status, output = in_a_terminal(tmp_path, seconds, "--seconds", "30", end=end)
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
        (["damo"], "invalid choice: 'damo'"),
        ([], "required: command"),
    ):
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert caught.value.code == 2
        assert said in capsys.readouterr().err


def test_what_is_not_installed_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "_NEEDED", ("rich", "no_such_package"))
    assert cli.main(["demo"]) == 1
    assert capsys.readouterr().err == (
        "aiolimit demo needs no_such_package: install aiolimit-core with its extra 'cli', "
        "in a clone with: pip install -e '.[cli]'\n"
    )
