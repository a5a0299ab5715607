"""The services of the demo: the examples, each as its own process."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

__all__ = ["DemoFailed", "started"]

# In a checkout the examples lie beside the package; a wheel carries those that the demo runs.
_HERE = Path(__file__).parent
_EXAMPLES = next(
    (
        folder
        for folder in (_HERE / "examples", _HERE.parents[1] / "examples")
        if (folder / "gateway.py").is_file()
    ),
    _HERE / "examples",
)


class DemoFailed(Exception):
    """The demo cannot go on; the message says why."""


@contextlib.asynccontextmanager
async def started(script: str, *arguments: str, **environment: str) -> AsyncIterator[str]:
    """One of the examples, run as a user would run it; gives the address it listens on."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(_EXAMPLES / script),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
        start_new_session=True,  # Ctrl-C is for the demo, which then ends it in order
    )
    try:
        line = (await process.stdout.readline()).decode() if process.stdout else ""
        if not line.startswith("listening on "):
            raise DemoFailed(f"{script} did not start, see above")
        yield line.removeprefix("listening on ").strip()
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 5)
        except TimeoutError:
            process.kill()
            await process.wait()
