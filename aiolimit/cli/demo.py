"""`aiolimit demo`: services of the examples, each as its own process, under real traffic."""

import asyncio
import contextlib
import signal
from typing import Any

from rich.console import Console

from aiolimit.cli.load import busy, load
from aiolimit.cli.page import Service, showing
from aiolimit.cli.quotas import gateway, quotas
from aiolimit.cli.screen import say
from aiolimit.cli.services import DemoFailed

__all__ = ["demo"]


def demo(
    seconds: float,
    *,
    act: str = "both",
    serve: bool = False,
    stay: bool = False,
    port: int | None = None,
) -> int:
    """Run the demo, its first act for so many seconds; with `serve` until it is interrupted.

    stay: keep the services and the page when the acts are over, until interrupted.
    port: of the page.
    """
    console = Console()
    acts = _acts(console, seconds, act, serve=serve, stay=stay, port=port)
    try:
        return asyncio.run(_until_interrupted(acts))
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


async def _acts(
    console: Console, seconds: float, act: str, *, serve: bool, stay: bool, port: int | None
) -> int:
    status = 0
    services: list[Service] = []
    async with contextlib.AsyncExitStack() as running:
        first = second = None
        if act != "load":
            first, database = await running.enter_async_context(gateway())
            services.append(first)
        if act != "quotas" and not serve:
            second = await running.enter_async_context(busy())
            services.append(second)
        address = await running.enter_async_context(showing(services, port))
        say(console, f"Watch it live, in a browser: {address}", "bold")
        if first is not None:
            status = await quotas(console, first, database, seconds, serve=serve)
        if first is not None and second is not None:
            console.print()
        if second is not None:
            status |= await load(console, second, seconds)
        if stay:
            say(console, f"All is over. The page stays, until Ctrl-C: {address}")
            await asyncio.Event().wait()
    return status
