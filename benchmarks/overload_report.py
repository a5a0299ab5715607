"""What the overload benchmark found: a line for a run, tables for the terminal and the page."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from benchmarks.overload_goals import Goal, Key, by_case, goals, middle
from benchmarks.overload_run import DEADLINE, Figures
from benchmarks.overload_server import VARIANTS
from benchmarks.report import columns, facts, table

__all__ = ["line", "page_section", "told"]

_PACKAGES: Final = ("aiolimit-core", "uvicorn", "httptools", "h11", "psutil")

_TEXT: Final = """\
## Under overload

This section is written by `make bench-overload`, in about {minutes:.0f} minutes. How much a real
uvicorn server still serves in time when several times its capacity is asked of it, with different
protections before the same handler. {summary}

| | |
|---|---|
{facts}

What a server can do without overload (C), what a refusal by the thinnest middleware costs, and
the ceiling that follows: the share of C that is left at k-fold load when refusing has taken its
time, (1 - k c C) / (1 - c C). Medians.

{yardsticks}

Served within {deadline:g} s of the planned time, as a share of C, and in brackets as a share of the
ceiling; medians of {starts} starts.

{shares}

Latency in milliseconds, and how the rest ended; medians.

{latencies}

The goals.

{goals}

### How the overload is measured

- **Two processes, two cores**: the server is uvicorn on asyncio, its access log off, fresh for
  each run; the client is a bare epoll loop. A run in which the client was more than 30 ms late
  (p99), or in which the server waited for its core more than 5 % of the time, is void.{voids}
- **Open loop**: the users are independent (Poisson), and none waits because another is served
  slowly. Latency counts from the planned time, and an answer after {deadline:g} s is worth nothing,
  though the server has worked for it. Every run counts from its first moment, on a cold server.
- **Connections** are open and accepted before the load, 1.5 k C x {deadline:g} s of them. Opened
  under load they would wait in the kernel, which drops what it cannot hold, and a server without
  protection would seem to do well. A request for which none is free is lost, and told.
- **The handler** burns CPU by the clock of its thread, then sleeps (or first sleeps).
  {variants}.
  C never gives the loop away: what counts requests in flight never sees two, and the hand-tuned
  cap refuses nobody.
- **Arms**: `fixed rate C` is `Limiter` at exactly C, with 50 ms of it as burst. `process CPU >
  85 %` refuses all while the last 0.25 s of the process (psutil) were busier. `hand-tuned cap`
  lets 2 C x latency in at once: the best there is, for whoever has measured C and latency, for as
  long as they stay. All refuse with the same few lines.
- **Settled** is when goodput (in 250 ms) has reached 85 % of its final median for good: no two
  short ones in a row.
- **Halved**: each request burns twice the CPU from 40 % of the run on; what counts begins 2 s
  later.
"""


def line(found: Figures) -> str:
    """A run in one line."""
    case = found.case
    of = f"{found.of_ceiling:.3f} of ceiling {found.ceiling:.3f}" if found.ceiling else "no ceiling"
    capacity = "the new C" if case.halve else "C"
    return (
        f"{case!s:<22} {case.arm:<24} goodput {found.share:.3f} of {capacity} ({of}; after 1 s "
        f"{found.later_share:.3f}) | admitted p50 {_ms(found.admitted[50])} p99 "
        f"{_ms(found.admitted[99])} ms | refused {found.refusals} p99 {_ms(found.refused[99])} "
        f"ms | "
        f"{'dip' if case.halve else 'settled'} {_seconds(found.settled)} | late {found.late} "
        f"unanswered {found.unanswered} lost {found.lost} | client late p99 "
        f"{found.lateness * 1e3:.1f} ms, server waited {found.waited:.1%}"
        + (f" | VOID: {found.void}" if found.void else "")
    )


def told(results: Sequence[Figures], lacking: Mapping[str, str]) -> str:
    """All tables, for a terminal."""
    parts = (_yardsticks(results), _shares(results), _latencies(results), _goals(goals(results)))
    voids = "\n".join(
        f"void: {one.case}, {one.case.arm}: {one.void}" for one in results if one.void
    )
    left_out = "\n".join(f"left out: {arm} (lacks {lacks})" for arm, lacks in lacking.items())
    tables = [columns(part) for part in parts]
    return "\n\n".join(part for part in (*tables, voids, left_out, _summary(results)) if part)


def page_section(
    results: Sequence[Figures], lacking: Mapping[str, str], *, seconds: float, starts: int
) -> str:
    """The section of docs/benchmarks.md."""
    void = sum(bool(one.void) for one in results)
    told_voids = f" {void} of {len(results)} runs stayed void and are left out." if void else ""
    missing = "; ".join(f"{arm} (lacks `{lacks}`)" for arm, lacks in lacking.items())
    speaks = sorted({one.yardstick.speaks for one in results})
    return _TEXT.format(
        minutes=seconds / 60,
        summary=_summary(results) + (f" Left out: {missing}." if missing else ""),
        facts="\n".join(
            f"| {name} | {value} |"
            for name, value in (*facts(_PACKAGES), ("HTTP", ", ".join(speaks)))
        ),
        yardsticks=table(_yardsticks(results)),
        shares=table(_shares(results)),
        latencies=table(_latencies(results)),
        goals=table(_goals(goals(results))),
        deadline=DEADLINE,
        starts=starts,
        voids=told_voids,
        variants="; ".join(f"{name}: {variant}" for name, variant in VARIANTS.items()),
    )


def _summary(results: Sequence[Figures]) -> str:
    judged = goals(results)
    bad = [goal for goal in judged if goal.verdict.startswith("**")]
    unknown = sum(goal.verdict == "open" for goal in judged)
    met = len(judged) - len(bad) - unknown
    text = f"{met} of {len(judged)} goals are met" + (f", {unknown} are open." if unknown else ".")
    missed = "; ".join(f"{goal.what}: {goal.measured}, asked {goal.must}" for goal in bad)
    return f"{text} Missed: {missed}." if bad else text


def _places(results: Sequence[Figures]) -> list[tuple[str, bool]]:
    return list(dict.fromkeys((one.case.variant, one.case.io_first) for one in results))


def _name(variant: str, io_first: bool) -> str:
    return f"{variant}, I/O first" if io_first else variant


def _yardsticks(results: Sequence[Figures]) -> list[list[str]]:
    rows = [["variant", "C", "a refusal", "ceiling at 2x", "5x", "10x"]]
    for variant in dict.fromkeys(one.case.variant for one in results):
        sticks = list(
            dict.fromkeys(one.yardstick for one in results if one.case.variant == variant)
        )
        ceilings = [median(each.ceiling(load) for each in sticks) for load in (2.0, 5.0, 10.0)]
        rows.append(
            [
                f"{variant}: {VARIANTS[variant]}",
                f"{median(each.capacity for each in sticks):.1f}/s",
                f"{median(each.refusal for each in sticks) * 1e6:.0f} µs",
                *(f"{ceiling:.3f}" for ceiling in ceilings),
            ]
        )
    return rows


def _shares(results: Sequence[Figures]) -> list[list[str]]:
    found = by_case(results)
    loads = sorted({key.load for key in found})
    rows = [["variant", "arm", *(f"{load:g}x" for load in loads), "10x, 30 s", "halved at 2x"]]
    for variant, io_first in _places(results):
        arms = dict.fromkeys(
            key.arm for key in found if (key.variant, key.io_first) == (variant, io_first)
        )
        for arm in arms:
            keys = [Key(arm, variant, io_first, load) for load in loads]
            keys.append(Key(arm, variant, io_first, 10.0, long=True))
            keys.append(Key(arm, variant, io_first, 2.0, halve=True))
            rows.append(
                [_name(variant, io_first), arm, *(_cell(found.get(key, [])) for key in keys)]
            )
    return rows


def _cell(runs: Sequence[Figures]) -> str:
    if not runs:
        return ""
    share, part = middle(runs, lambda one: one.share), middle(runs, lambda one: one.of_ceiling)
    return f"{share:.2f}" + ("" if math.isnan(part) else f" ({part:.2f})")


def _latencies(results: Sequence[Figures]) -> list[list[str]]:
    rows = [
        [
            "run",
            "arm",
            "admitted p50",
            "p99",
            "refused p99",
            "settled",
            "refused",
            "late",
            "no answer",
            "lost",
        ]
    ]
    for key, runs in sorted(by_case(results).items(), key=lambda item: _order(item[0])):
        rows.append(
            [
                f"{_name(key.variant, key.io_first)} {key.load:g}x"
                + (" halved" if key.halve else " 30 s" if key.long else ""),
                key.arm,
                _ms(middle(runs, lambda one: one.admitted[50])),
                _ms(middle(runs, lambda one: one.admitted[99])),
                _ms(middle(runs, lambda one: one.refused[99])),
                _seconds(middle(runs, lambda one: one.settled)),
                *(
                    f"{middle(runs, count):.0f}"
                    for count in (
                        lambda one: one.refusals,
                        lambda one: one.late,
                        lambda one: one.unanswered,
                        lambda one: one.lost,
                    )
                ),
            ]
        )
    return rows


def _order(key: Key) -> tuple[str, bool, bool, bool, float]:
    return key.variant, key.io_first, key.halve, key.long, key.load


def _goals(judged: Sequence[Goal]) -> list[list[str]]:
    rows = [["goal", "measured", "asked", "verdict"]]
    return rows + [[goal.what, goal.measured, goal.must, goal.verdict] for goal in judged]


def _ms(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{seconds * 1e3:.0f}"


def _seconds(seconds: float) -> str:
    return "never" if math.isinf(seconds) else f"{seconds:.2f} s"
