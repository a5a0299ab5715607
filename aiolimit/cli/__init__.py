"""The command `aiolimit`. What a subcommand needs is imported only when it runs."""

import argparse
import importlib.util
import sys

from aiolimit import __version__

__all__ = ["main"]

_NEEDED = ("rich", "uvicorn", "starlette", "httpx2", "aiosqlite")


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="aiolimit", description="An asyncio-native rate limiter for Python."
    )
    parser.add_argument("--version", action="version", version=f"aiolimit {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo",
        help="watch a real service refuse, queue and admit real requests",
        description="Starts the gateway of the examples on a free port of 127.0.0.1, sends it real "
        "HTTP traffic of five users for a while, and shows what becomes of it.",
    )
    demo.add_argument("--seconds", type=_seconds, default=20.0, help="how long (default: 20)")
    demo.add_argument(
        "--serve", action="store_true", help="keep the gateway running and say how to try it"
    )
    options = parser.parse_args(arguments)
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"aiolimit demo needs {', '.join(missing)}: install aiolimit-core with its extra "
            "'cli', in a clone with: pip install -e '.[cli]'",
            file=sys.stderr,
        )
        return 1
    from aiolimit.cli.demo import demo as run

    return run(options.seconds, serve=options.serve)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 2 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"a number of seconds from 2 to 3600, not {text!r}")
    return seconds
