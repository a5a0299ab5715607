"""`aiolimit demo`: services of the examples, each as its own process, under real traffic."""

import asyncio
import contextlib
import signal
from typing import Any

from rich.console import Console

from aiolimit.cli.load import load
from aiolimit.cli.quotas import quotas
from aiolimit.cli.services import DemoFailed

__all__ = ["demo"]


def demo(seconds: float, *, act: str = "both", serve: bool = False) -> int:
    """Run the demo, its first act for so many seconds; with `serve` until it is interrupted."""
    console = Console()
    try:
        return asyncio.run(_until_interrupted(_acts(console, seconds, act, serve=serve)))
    except DemoFailed as failed:
        console.print(f"aiolimit demo: {failed}", style="red", markup=False)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("Stopped.")
        return 0


async def _until_interrupted(work: Any) -> int:
    """Have Ctrl-C and SIGTERM cancel the work, so that nothing it has started is left behind."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    # Windows knows neither: there Ctrl-C raises KeyboardInterrupt.
    with contextlib.suppress(NotImplementedError, AttributeError):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, task.cancel)
    result: int = await task
    return result


async def _acts(console: Console, seconds: float, act: str, *, serve: bool) -> int:
    status = 0
    if act != "load":
        status = await quotas(console, seconds, serve=serve)
    if act == "both":
        console.print()
    if act != "quotas":
        status |= await load(console, seconds)
    return status
