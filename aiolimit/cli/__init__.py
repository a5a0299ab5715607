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
        description="Starts services of the examples on free ports of 127.0.0.1, sends them real "
        "HTTP traffic, and shows what becomes of it, here and on a live page. The first act is "
        "about quotas: five users at a gateway. The second is about load: a service gets slower "
        "while more is asked of it.",
    )
    demo.add_argument(
        "--seconds",
        type=_seconds,
        default=20.0,
        help="how long the first act is; the second takes about six tenths of it (default: 20)",
    )
    demo.add_argument(
        "--act",
        choices=("quotas", "load", "both"),
        default="both",
        help="which act to play (default: both)",
    )
    demo.add_argument(
        "--serve",
        action="store_true",
        help="send nothing, keep the gateway of the first act running and say how to try it",
    )
    demo.add_argument(
        "--stay",
        action="store_true",
        help="keep the live page when the acts are over, until Ctrl-C",
    )
    demo.add_argument(
        "--port",
        type=_port,
        help="of the live page (default: 9464, or any that is free if that is taken)",
    )
    options = parser.parse_args(arguments)
    if options.serve and options.act == "load":
        demo.error("--serve is for the gateway, which has no part in the act 'load'")
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"aiolimit demo needs {', '.join(missing)}: install aiolimit-core with its extra "
            "'cli', in a clone with: pip install -e '.[cli]'",
            file=sys.stderr,
        )
        return 1
    try:
        from aiolimit.cli.demo import demo as run

        return run(
            options.seconds,
            act=options.act,
            serve=options.serve,
            stay=options.stay,
            port=options.port,
        )
    except KeyboardInterrupt:  # before it has begun: what it needs takes a while to import
        print("Stopped.")
        return 0


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 2 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"a number of seconds from 2 to 3600, not {text!r}")
    return seconds
