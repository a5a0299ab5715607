"""How much a real server still serves in time when too much is asked of it.

`python -m benchmarks.overload` runs every arm of `overload_arms.py` on every variant of
`overload_server.py`, in turns, three fresh servers each, holds the medians against the goals and
writes them into docs/benchmarks.md. With any of --arm, --variant, --load, --order or --halve it
runs that slice only, prints a line for each run, and writes nothing:

    python -m benchmarks.overload --arm aiolimit --load 2 10 --seconds 8

Server and client each have a core of their own. Whoever else uses those two cores is in the way:
a run in which the client was late, or the server waited for its core, is void, and is repeated.
"""

import argparse
import math
import os
import sys
from dataclasses import replace
from time import perf_counter
from typing import Final

from benchmarks.open_loop import allow_many_files
from benchmarks.overload_arms import ARMS, missing
from benchmarks.overload_plan import LONG, groups
from benchmarks.overload_report import line, page_section, told
from benchmarks.overload_run import Case, Figures, Yardstick, measure_yardstick, run
from benchmarks.overload_server import VARIANTS
from benchmarks.page import write_overload

_ATTEMPTS: Final = 3  # of a run that was void


class _Bench:
    """Runs cases, each start of the server with a seed of its own."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.core = _pin()
        self._seed = options.seed

    def yardstick(self, variant: str, *, halved: bool) -> Yardstick:
        options = self.options
        if options.capacity and options.refusal_cost:
            return Yardstick(options.capacity, options.capacity / 2, options.refusal_cost)
        found = measure_yardstick(
            variant,
            halved=halved,
            seconds=2.0 if options.quick else 3.0,
            core=self.core,
            protocol=options.http,
        )
        half = "" if math.isnan(found.halved) else f" (halved {found.halved:.1f}/s)"
        say(
            f"{variant}: C = {found.capacity:.1f}/s{half}, a refusal costs "
            f"{found.refusal * 1e6:.1f} µs ({found.speaks}); the same again: "
            f"--capacity {found.capacity:.1f} --refusal-cost {found.refusal:.2e}"
            + (f"; the server waited {found.waited:.0%}" if found.waited > 0.01 else "")
        )
        return found

    def run(self, case: Case, yardstick: Yardstick) -> Figures:
        """One run, repeated while it is void."""
        attempts = self.options.attempts
        self._seed += 1
        for attempt in range(attempts):
            found = run(
                case, yardstick, seed=self._seed, core=self.core, protocol=self.options.http
            )
            if not found.void or yardstick.void or attempt == attempts - 1:
                break
            say(f"void, once more: {found.void}: {case.arm}, {case}")
        return found


def main() -> None:
    """Run all, or a slice."""
    options = _options()
    allow_many_files()
    sliced = options.arm or options.variant or options.load or options.order or options.halve
    if options.attempts is None:
        options.attempts = 1 if sliced or options.quick else _ATTEMPTS
    bench = _Bench(options)
    if sliced:
        _slice(bench)
    else:
        _everything(bench)


def _slice(bench: _Bench) -> None:
    options = bench.options
    arms = options.arm or [arm for arm in ARMS if not missing(arm)]
    for arm in arms:
        if lacks := missing(arm):
            sys.exit(f"{arm}: this version lacks {lacks}")
    for variant in options.variant or ["A"]:
        yardstick = bench.yardstick(variant, halved=options.halve)
        for order in options.order or ["cpu-first"]:
            for start in range(options.starts or 1):
                for load in options.load or [10.0]:
                    for arm in arms[start % len(arms) :] + arms[: start % len(arms)]:
                        case = Case(
                            arm,
                            variant,
                            io_first=order == "io-first",
                            load=load,
                            seconds=options.seconds or 8.0,
                            halve=options.halve,
                            warm=options.warm,
                        )
                        found = bench.run(case, yardstick)
                        print(line(found), flush=True)
                        if options.facts:
                            print(f"    {found.facts}\n    {_curve(found)}", flush=True)


def _curve(found: Figures) -> str:
    """Goodput of each 250 ms, as per cent of C."""
    return " ".join(f"{100 * share:.0f}" for share in found.buckets)


def _everything(bench: _Bench) -> None:
    options = bench.options
    begin = perf_counter()
    lacking = {arm: missing(arm) for arm in ARMS if missing(arm)}
    for arm, lacks in lacking.items():
        say(f"left out: {arm}: this version lacks {lacks}")
    starts = options.starts or (1 if options.quick else 3)
    plan = [
        replace(group, cases=[case for case in group.cases if case.arm not in lacking])
        for group in groups(options.seconds or (4.0 if options.quick else 8.0), options.warm)
    ]
    total = sum(len(group.cases) for group in plan)
    results: list[Figures] = []
    for start in range(starts):
        for group in plan:
            halved = any(case.halve for case in group.cases)
            yardstick = bench.yardstick(group.variant, halved=halved)
            shift = start * len(group.cases) // starts
            for case in group.cases[shift:] + group.cases[:shift]:
                if case.seconds >= LONG and (start > 0 or options.quick):
                    continue  # the drift is looked for once
                found = bench.run(case, yardstick)
                results.append(found)
                passed = f"{perf_counter() - begin:.0f} s"
                say(f"[{len(results)}/<={total * starts} {passed}] {line(found)}")
    seconds = perf_counter() - begin
    print(told(results, lacking))
    if not options.quick:
        path = write_overload(page_section(results, lacking, seconds=seconds, starts=starts))
        print(f"written: {path}")


def _pin() -> int | None:
    """Keep this process, the client, to one core. Returns the core of the server."""
    if not hasattr(os, "sched_setaffinity"):
        say("this system cannot pin a process to a core: client and server may share one")
        return None
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        say("there is one core for client and server: these figures mean nothing")
        return None
    os.sched_setaffinity(0, {cores[0]})
    return cores[-1]


def say(text: str) -> None:
    """Tell how far it is."""
    print(text, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overload",
        description="How much a server under overload still serves in time.",
    )
    parser.add_argument("--quick", action="store_true", help="one short run each, write nothing")
    parser.add_argument("--starts", type=int, help="fresh servers for each case (3; slice: 1)")
    parser.add_argument("--seconds", type=float, help="of load in each run (8)")
    parser.add_argument("--warm", type=float, default=0.0, help="seconds of .5x before the load")
    parser.add_argument("--attempts", type=int, help="at a run that is void (3; else 1)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--http", default="auto", choices=["auto", "h11", "httptools"])
    part = parser.add_argument_group("a slice, one line for each run; each takes several values")
    part.add_argument("--arm", nargs="+", choices=ARMS)
    part.add_argument("--variant", nargs="+", choices=VARIANTS)
    part.add_argument("--load", nargs="+", type=float, help="in times the capacity")
    part.add_argument("--order", nargs="+", choices=["cpu-first", "io-first"])
    part.add_argument("--halve", action="store_true", help="halve the capacity at 40 %% of the run")
    part.add_argument(
        "--facts", action="store_true", help="what the arm tells, and goodput in time"
    )
    part.add_argument("--capacity", type=float, help="C, not to measure it again")
    part.add_argument("--refusal-cost", type=float, help="CPU seconds, likewise; give both")
    return parser.parse_args()


if __name__ == "__main__":
    main()
