"""The table, for the terminal and as docs/benchmarks.md, with all one needs to judge it."""

import os
import platform
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from benchmarks.fresh import ROOT

__all__ = ["Row", "columns", "facts", "markdown", "plain", "summary", "table", "times"]

_PACKAGES: Final = (
    "aiolimit-core",
    "aiolimiter",
    "asynciolimiter",
    "fastapi",
    "fastapi-limiter",
    "limits",
    "prometheus-client",
    "pyrate-limiter",
    "slowapi",
    "throttled-py",
)

_HEAD: Final = ("what", "against", "measured", "target", "met")

_TEXT: Final = """\
# Benchmarks

This page is written by `make bench`, which installs the other limiters, runs `python -m
benchmarks` and takes about {seconds:.0f} s. It is no test: a missed target is told here, and fails
nothing. Only ratios mean something on another machine than this one.

{summary}

| | |
|---|---|
{facts}

{table}

Rows without a target are there for comparison, so that nothing hides behind a choice.

## How it is measured

- **Calls** (all rows about `async with` and `try_acquire`): five processes, one event loop each,
  100 keys in turn, a limit that nobody reaches. Each limiter has {rounds} turns of 5 ms or more, in
  turns with all others; the figure is the median, over the processes as well (each puts its
  objects elsewhere, which moves a figure by some 5 %), and the ratios are between medians. The
  time of the empty loop is taken off everything. The garbage collector runs between the rounds
  only.
- **An `async with` that does nothing** keeps the arguments of `acquire` in a fresh object with
  `__slots__`, and its enter and exit do nothing. The barest one has not even arguments.
- **Other limiters** are used as their documentation shows for async code: `limits` with its async
  memory storage, `throttled-py` with its in-memory store, `pyrate-limiter` with one in-memory
  bucket for each key, wrapped for async as it asks for. `aiolimiter` and `asynciolimiter` know no
  keys and stand in a dict. The target is for the sliding window counter of `limits`, which only
  counts, as aiolimit does; its moving window keeps each call. Both leave work to a task in the
  background, which looks through all keys. The loop does not turn between the calls
  that are timed, so that is not in the first figures; the rows where it turns after each call have
  it (and the turn itself is taken off). `asynciolimiter` sets a timer in each call: the turns of
  the loop that run them are in its figure.
- **A key that is called rarely** has its newest entry closed, so that each call opens one and
  drops what is old: the slower way through the limiter. 5000 keys, one call each, more than a
  32nd of the period apart.
- **Metrics**: the same loop over two limiters in turns, of which one is registered and its
  registry has been scraped; five processes, and in each the ratio of the medians of its turns, of
  which the median counts. A scrape is prometheus-client's `generate_latest` of a registry with 50
  limiters of one rate each that have been called, its median over 41; what prometheus-client
  itself takes to write as many samples is beside it.
- **Waiters**: 8000 tasks that want the same key at once, at 2000 a second; a process for each
  run, seven runs of each limiter in turns. CPU is the time of the process from before the first
  task is made until the last one has passed, divided by 8000: making and running the tasks is in
  it. Any limiter that admits 2000 at once needs 3 s from the first admission to the last. For the
  fullest second, admission times are those at which aiolimit granted, by its own clock;
  aiolimiter does not tell, so it is the loop's time directly after. That one is the
  worst of the seven runs, all else is the median.
- **Memory**: how much larger a fresh process (its resident set) is with a million keys than
  before, by key: the text of the key, its place in the dict, its window, and what the allocator
  adds. Then the median of five full garbage collections in that process. Three runs of each in
  turns.
- **Middleware**: a pure ASGI application that answers at once, called with the scope of a real
  request (11 headers, 100 client addresses), with the middleware and without, in turns. No
  socket, no server. A request that is refused does not reach the application, so what is added to
  it has the application's own time taken off. The fields that tell what is left are on every
  response.
- **A FastAPI service** has one route with a parameter. `slowapi` is its decorator, with its
  headers; `fastapi-limiter` its dependency, which has none, and one bucket for all keys. What is
  refused before the route saves the route's time.
- **Import**: in fresh processes, in turns, with compiled files in place; the time of the import
  alone, without that of starting Python.

To run it: `make bench`.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `met` is None where there is no target."""

    what: str
    against: str
    measured: str
    target: str = ""
    met: bool | None = None

    def cells(self) -> tuple[str, str, str, str, str]:
        """What the table shows."""
        met = "" if self.met is None else "yes" if self.met else "**no**"
        return self.what, self.against, self.measured, self.target, met


def times(seconds: float) -> str:
    """A short time, for people."""
    if seconds < 1e-6:
        return f"{seconds * 1e9:.0f} ns"
    return f"{seconds * 1e6:.2f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def plain(rows: Sequence[Row]) -> str:
    """The table for a terminal."""
    return columns((_HEAD, *(row.cells() for row in rows)))


def columns(lines: Sequence[Sequence[str]]) -> str:
    """Any table for a terminal; the first line is its head."""
    cells = [[cell.replace("`", "").replace("**", "") for cell in line] for line in lines]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def table(lines: Sequence[Sequence[str]]) -> str:
    """Any table for a page; the first line is its head."""
    head, *rest = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ("---",) * len(head), *rest))


def summary(rows: Iterable[Row]) -> str:
    """One paragraph: how many targets are met, and which are not."""
    judged = [row for row in rows if row.met is not None]
    missed = [row for row in judged if not row.met]
    if not missed:
        return f"All {len(judged)} targets are met."
    told = "; ".join(
        f"{row.what}{' against ' if row.against else ''}{row.against}: "
        f"{row.measured}, target {row.target}"
        for row in missed
    )
    return f"{len(judged) - len(missed)} of {len(judged)} targets are met. Missed: {told}."


def markdown(rows: Sequence[Row], *, seconds: float, rounds: int) -> str:
    """The whole page."""
    return _TEXT.format(
        seconds=round(seconds, -1),
        summary=summary(rows),
        facts="\n".join(f"| {name} | {value} |" for name, value in facts(_PACKAGES)),
        table=table((_HEAD, *(row.cells() for row in rows))),
        rounds=rounds,
    )


def facts(packages: Iterable[str]) -> list[tuple[str, str]]:
    """What these figures were measured on, and with."""
    return [
        ("machine", f"{_processor()}, {os.cpu_count()} cores"),
        ("system", _system()),
        ("Python", f"{platform.python_implementation()} {platform.python_version()}"),
        ("packages", ", ".join(f"{name} {_version(name)}" for name in packages)),
        ("date", f"{datetime.now(UTC):%Y-%m-%d}"),
    ]


def _processor() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _system() -> str:
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        name = f"{platform.system()} {platform.release()}"
    return f"{name}, {platform.machine()}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # ours, when it is run from its folder
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return str(project["version"])
