"""Real servers for tests: uvicorn in the test's own loop, and examples as a user runs them."""

import asyncio
import contextlib
import os
import re
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn

ROOT = Path(__file__).parent.parent


@contextlib.asynccontextmanager
async def serving(app: Any, **options: Any) -> AsyncIterator[str]:
    """An application served on a free port; gives `127.0.0.1:<port>`."""
    config = uvicorn.Config(app, port=0, log_level="error", **options)
    listening = config.bind_socket()
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve([listening]))
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listening.close()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def started(
    command: tuple[str, ...], environment: dict[str, str]
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **environment},
    )


@contextlib.asynccontextmanager
async def running(*command: str, **environment: str) -> AsyncIterator[str]:
    """A program that says on which `http://...` it listens; gives that address."""
    process = await started(command, environment)
    assert process.stdout is not None
    said = ""
    try:
        while not (address := re.search(r"http://127\.0\.0\.1:\d+", said)):
            line = (await asyncio.wait_for(process.stdout.readline(), 30)).decode()
            assert line, f"{command} ended: {said}"
            said += line
        yield address.group()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        said += (await process.communicate())[0].decode()
        assert "Traceback" not in said, said


async def run(*command: str, **environment: str) -> tuple[int, str]:
    """A program that ends by itself; gives its exit status and all that it printed."""
    process = await started(command, environment)
    said, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode is not None
    return process.returncode, said.decode()
