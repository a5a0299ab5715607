"""What a whole run of the overload benchmark consists of.

Not every arm in every corner, as that would take hours: those that must fail are shown failing on
variant A, and where two arms are to be compared both are in the same group, on the same yardstick.
"""

from dataclasses import dataclass
from typing import Final

from benchmarks.overload_run import Case

__all__ = ["LONG", "Group", "groups"]

LONG: Final = 30.0  # seconds of the run that looks for drift

_LOADS: Final = (0.8, 2.0, 5.0, 10.0)
_COMPARED: Final = ("hand-tuned cap", "aiolimit")
_FAILING: Final = ("nothing", "fixed rate C", "process CPU > 85 %")
_ONLY: Final = "aiolimit, acquire only"
_WAITING: Final = "aiolimit, waiting callers"
_EARLY: Final = "aiolimit, before parsing"


@dataclass(frozen=True, slots=True)
class Group:
    """Cases that share a yardstick."""

    variant: str
    cases: list[Case]


def groups(seconds: float, warm: float) -> list[Group]:
    """All of it, for one start of each server."""

    def cases(
        arms: tuple[str, ...], loads: tuple[float, ...], variant: str, *, io_first: bool = False
    ) -> list[Case]:
        return [
            Case(arm, variant, io_first=io_first, load=load, seconds=seconds, warm=warm)
            for load in loads
            for arm in arms
        ]

    a = [
        *cases(_COMPARED, _LOADS, "A"),
        *cases(_FAILING, (2.0, 10.0), "A"),
        *cases((_ONLY,), (2.0, 5.0, 10.0), "A"),
        *cases((_WAITING,), (2.0, 10.0), "A"),
        *cases((_EARLY,), (10.0,), "A"),
        *(
            Case(arm, "A", load=2.0, seconds=seconds + 2, halve=True, warm=warm)
            for arm in _COMPARED
        ),
        *(Case(arm, "A", load=10.0, seconds=LONG, warm=warm) for arm in _COMPARED),
    ]
    a += cases(_COMPARED, (2.0, 10.0), "A", io_first=True)
    b = [*cases(_COMPARED, _LOADS, "B"), *cases((_EARLY,), (5.0, 10.0), "B")]
    return [
        Group("A", a),
        Group("B", b),
        Group("C", cases(_COMPARED, _LOADS, "C")),
    ]
