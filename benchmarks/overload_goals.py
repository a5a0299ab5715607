"""What is asked of aiolimit under overload, and whether it was met: medians over the starts.

A run that was void does not count. A goal for which nothing was measured is said to be open, not
met.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from benchmarks.overload_plan import LONG
from benchmarks.overload_run import DEADLINE, Figures

__all__ = ["Goal", "Key", "by_case", "goals", "middle"]

_OURS: Final = "aiolimit"
_ONLY: Final = "aiolimit, acquire only"
_HAND: Final = "hand-tuned cap"
_FAILING: Final = ("nothing", "fixed rate C", "process CPU > 85 %")

# Share of the ceiling, by load: must and stretch.
_LARGE: Final = {2.0: (0.93, 0.97), 5.0: (0.92, 0.96), 10.0: (0.88, 0.95)}
_SMALL: Final = {2.0: (0.85, 0.90), 5.0: (0.80, 0.87), 10.0: (0.70, 0.88)}
_ACQUIRE: Final = {2.0: (0.90, 1.0), 5.0: (0.88, 1.0), 10.0: (0.85, 1.0)}
_AGAINST_HAND: Final = 0.95
_ADMITTED: Final = 0.35 * DEADLINE
_REFUSED: Final = 0.100  # seconds
_SETTLED: Final = 1.0  # seconds
_HALVED: Final = 0.90  # of the new C
_FAILED: Final = 0.5  # of C; an arm that must fail serves less


@dataclass(frozen=True, slots=True)
class Key:
    """The runs that are repetitions of each other."""

    arm: str
    variant: str
    io_first: bool
    load: float
    halve: bool = False
    long: bool = False


@dataclass(frozen=True, slots=True)
class Goal:
    """A line of the table of goals."""

    what: str
    measured: str
    must: str
    verdict: str


def by_case(results: Sequence[Figures]) -> dict[Key, list[Figures]]:
    """The runs that count, by what was run."""
    found: dict[Key, list[Figures]] = {}
    for one in results:
        case = one.case
        key = Key(
            case.arm, case.variant, case.io_first, case.load, case.halve, case.seconds >= LONG
        )
        if not one.void:
            found.setdefault(key, []).append(one)
    return found


def middle(runs: Sequence[Figures], figure: Callable[[Figures], float]) -> float:
    """The median of a figure; nan where no run has it."""
    values = [value for value in map(figure, runs) if not math.isnan(value)]
    return median(values) if values else math.nan


def goals(results: Sequence[Figures]) -> list[Goal]:
    """All goals, judged."""
    found = by_case(results)
    ours = [("A", False), ("A", True), ("C", False)]
    return [
        *(goal for place in ours for goal in _ceiling(found, _OURS, *place, _LARGE)),
        *_ceiling(found, _OURS, "B", False, _SMALL),
        *_ceiling(found, _ONLY, "A", False, _ACQUIRE),
        *_also(found),
        _halving(found),
        *_long(found),
        *(_fails(found, arm) for arm in _FAILING),
    ]


def _ceiling(
    found: dict[Key, list[Figures]],
    arm: str,
    variant: str,
    io_first: bool,
    asked: dict[float, tuple[float, float]],
) -> list[Goal]:
    rows = []
    for load, (must, stretch) in asked.items():
        runs = found.get(Key(arm, variant, io_first, load), [])
        if not runs and io_first and load == 5.0:
            continue  # not in the plan
        rows.append(_share(f"{arm}, {_place(variant, io_first)}, {load:g}x", runs, must, stretch))
    return rows


def _share(what: str, runs: list[Figures], must: float, stretch: float) -> Goal:
    value = middle(runs, lambda one: one.of_ceiling)
    of_capacity = middle(runs, lambda one: one.share)
    text = f"{value:.2f} of the ceiling, {of_capacity:.2f} of C"
    asked = f">= {must:.2f}" + (f", stretch {stretch:.2f}" if stretch < 1 else "")
    verdict = _verdict(value, value >= must, stretched=stretch < 1 and value >= stretch)
    return Goal(what, text if runs else "", asked, verdict)


def _also(found: dict[Key, list[Figures]]) -> list[Goal]:
    rows = []
    places = sorted({(key.variant, key.io_first) for key in found if key.arm == _OURS})
    for variant, io_first in places:
        place = _place(variant, io_first)
        overloads = {
            key.load: runs
            for key, runs in found.items()
            if key == Key(_OURS, variant, io_first, key.load) and key.load > 1
        }

        def worst(
            figure: Callable[[Figures], float], among: dict[float, list[Figures]] = overloads
        ) -> float:
            return max((middle(runs, figure) for runs in among.values()), default=math.nan)

        ratios = [
            middle(runs, lambda one: one.share) / middle(hand, lambda one: one.share)
            for load, runs in overloads.items()
            if (hand := found.get(Key(_HAND, variant, io_first, load)))
        ]
        ratio = min(ratios, default=math.nan)
        admitted = worst(lambda one: one.admitted[99])
        refused = worst(lambda one: one.refused[99])
        settled = worst(lambda one: one.settled)
        rows += [
            _row(f"{place}: against the {_HAND}, worst load", ratio, ">=", _AGAINST_HAND, ".2f"),
            _row(f"{place}: p99 of the admitted, worst load", admitted, "<=", _ADMITTED, "ms"),
            _row(f"{place}: p99 of the refusals, worst load", refused, "<=", _REFUSED, "ms"),
            _row(f"{place}: settled, worst load", settled, "<=", _SETTLED, "s"),
        ]
        if calm := found.get(Key(_OURS, variant, io_first, 0.8)):
            refusals = float(sum(one.refusals for one in calm))
            rows.append(_row(f"{place}: refusals at .8x, all starts", refusals, "<=", 0, ".0f"))
    return rows


def _halving(found: dict[Key, list[Figures]]) -> Goal:
    for key, runs in found.items():
        if key.arm == _OURS and key.halve:
            value = middle(runs, lambda one: one.share)
            dip = middle(runs, lambda one: one.settled)
            text = f"{value:.2f} of the new C; the dip lasts {dip:.2f} s"
            verdict = _verdict(value, value >= _HALVED)
            return Goal(f"capacity halved at {key.load:g}x", text, f">= {_HALVED:.2f}", verdict)
    return Goal("capacity halved", "", f">= {_HALVED:.2f}", "open")


def _long(found: dict[Key, list[Figures]]) -> list[Goal]:
    return [
        _share(f"{_OURS}, {_place(key.variant, key.io_first)}, {key.load:g}x, 30 s", runs, *must)
        for key, runs in found.items()
        if key.arm == _OURS and key.long and (must := _LARGE.get(key.load))
    ]


def _fails(found: dict[Key, list[Figures]], arm: str) -> Goal:
    runs = found.get(Key(arm, "A", False, 10.0), [])
    value = middle(runs, lambda one: one.share)
    verdict = _verdict(value, value < _FAILED, bad="**does not fail: the client is too kind**")
    text = f"{value:.2f} of C" if runs else ""
    return Goal(f"{arm}, A, 10x: has to fail", text, f"< {_FAILED:.2f}", verdict)


def _row(what: str, value: float, sign: str, bound: float, form: str) -> Goal:
    met = value >= bound if sign == ">=" else value <= bound
    if form == "ms":
        text, asked = f"{value * 1e3:.0f} ms", f"{sign} {bound * 1e3:.0f} ms"
    elif form == "s":
        text = "never" if math.isinf(value) else f"{value:.2f} s"
        asked = f"{sign} {bound:.2f} s"
    else:
        text, asked = f"{value:{form}}", f"{sign} {bound:{form}}"
    return Goal(what, "" if math.isnan(value) else text, asked, _verdict(value, met))


def _verdict(
    value: float, met: bool, *, stretched: bool = False, bad: str = "**must missed**"
) -> str:
    if math.isnan(value):
        return "open"
    return ("stretch met" if stretched else "met") if met else bad


def _place(variant: str, io_first: bool) -> str:
    return f"{variant}, I/O first" if io_first else variant
