"""The rows of the overview that tell of load controllers, and so of processes."""

from collections.abc import Iterator
from typing import Final

from grafana.common import PROCESS
from grafana.panels import Json, Query, lines, states

__all__ = ["can_do", "held_back"]

EACH: Final = "{{job}} {{instance}} {{controller}}"
NO_CONTROLLER: Final = "No load controller"
FAINT: Final = "rgba(142, 142, 142, 0.15)"


def of_process(metric: str) -> str:
    """A metric of the load controllers of the chosen processes."""
    return f"{metric}{{{PROCESS}}}"


def can_do() -> Iterator[Json]:
    """How much each process can do, and what that rests on."""
    admitted = f"rate({of_process('aiolimit_load_admitted_total')}[$__rate_interval])"
    rejected = f"rate({of_process('aiolimit_load_rejected_total')}[$__rate_interval])"
    yield lines(
        "Requests per second, against what can be done",
        "What is asked of each process, what it admits, and dashed what it can do, as its load "
        "controller has measured. Add processes where more is asked than can be done. Nothing can "
        "be told of that until the cost of a request is known.",
        Query(of_process("aiolimit_load_rate"), f"{EACH} can do", dashed=True),
        Query(f"{admitted} + {rejected}", f"{EACH} asked"),
        Query(admitted, f"{EACH} admitted"),
        unit="reqps",
        nothing=NO_CONTROLLER,
    )
    yield lines(
        "In flight, against its limit",
        "Calls in flight as the load controller counts them, and dashed how many may be. Where "
        "they meet, new calls are refused or wait.",
        Query(of_process("aiolimit_load_in_flight"), EACH),
        Query(of_process("aiolimit_load_in_flight_limit"), f"{EACH} limit", dashed=True),
        unit="short",
        nothing=NO_CONTROLLER,
    )
    yield lines(
        "CPU time of a request",
        "What a request takes of the event loop. If it jumps, look at what was deployed.",
        Query(of_process("aiolimit_load_request_cost_seconds"), EACH),
        unit="s",
        nothing=NO_CONTROLLER,
    )
    yield lines(
        "CPU of the event loop",
        "Busy: what is used of the CPU that the loop can get; 1 is no trouble by itself. Share: "
        "the part of a core it can get; below 1 others use the machine, or cpu.max throttles it. "
        "Give it more, or move the neighbours.",
        Query(of_process("aiolimit_load_busy_ratio"), f"{EACH} busy"),
        Query(of_process("aiolimit_load_share_ratio"), f"{EACH} share", dashed=True),
        unit="percentunit",
        highest=1,
        nothing=NO_CONTROLLER,
    )
    adjustments = f"aiolimit_load_adjustments_total{{{PROCESS}}}"
    yield lines(
        "Adjustments per minute",
        "How often the rate changed by a fifth: raised above the line, cut below it. cost: "
        "requests take more or less CPU. share: neighbours. refusals: refusing takes the CPU. A "
        "pressure: see which signal binds.",
        Query(
            f"60 * sum by (direction, reason) (rate({adjustments}[$__rate_interval]))",
            "{{direction}}: {{reason}}",
        ),
        unit="cpm",
        mirrored="/^down: /",
        nothing=NO_CONTROLLER,
    )
    would = f"aiolimit_load_would_reject_total{{{PROCESS}}}"
    yield lines(
        "Would be held up (dry run)",
        "Calls per second that a load controller with dry_run=True let pass. Take dry_run away "
        "once this is what you would refuse. Without a dry run it is 0.",
        Query(f"sum by (controller) (rate({would}[$__rate_interval]))", "{{controller}}"),
        unit="cps",
        nothing=NO_CONTROLLER,
    )


def held_back() -> Iterator[Json]:
    """What each process has too little of, and whether it still sees that."""
    yield lines(
        "Pressure, by signal",
        "Each signal of the worst process against its target, which is 1. Above 1 memory, stall, "
        "gc and your own sensors lower the rate; cpu and in_flight at 1 mean that all is used.",
        Query(f"max by (signal) ({of_process('aiolimit_load_pressure')})", "{{signal}}"),
        unit="percentunit",
        steps=((None, "green"), (1, "red")),
        highest=1,
        nothing=NO_CONTROLLER,
    )
    yield states(
        "Which signal binds",
        "What decides in at least one process how much it may do. Anything but cpu is a shortage: "
        "choose an instance above to see whose. memory: find what grows. stall: the machine waits "
        "for memory. gc: too much garbage. Others are your own sensors.",
        Query(f"max by (signal) ({of_process('aiolimit_load_binding')})", "{{signal}}"),
        shown={0: ("no", FAINT), 1: ("binds", "red")},
        shown_of={"cpu": {0: ("no", FAINT), 1: ("binds", "green")}},
        nothing=NO_CONTROLLER,
    )
    yield states(
        "Sensors",
        "Whether each sensor answers in all processes. In containers and on systems other than "
        "Linux some never do. One that was up and is not is a fault: the log aiolimit.load says "
        "which.",
        Query(f"min by (sensor) ({of_process('aiolimit_load_sensor_up')})", "{{sensor}}"),
        shown={0: ("down", "orange"), 1: ("up", "green")},
        nothing=NO_CONTROLLER,
    )
    yield lines(
        "Event loop: longest iteration",
        "The longest iteration in the last 10 s. Far above the CPU time of a request, something "
        "blocks the loop: find it with PYTHONASYNCIODEBUG=1. Where the share of a core is low at "
        "that time, others had the CPU.",
        Query(of_process("aiolimit_load_loop_lag_seconds"), EACH),
        unit="s",
        steps=((None, "green"), (0.25, "red")),
        nothing=NO_CONTROLLER,
    )
    lagged = of_process("aiolimit_load_loop_lagged_seconds_total")
    yield lines(
        "Event loop: time in long iterations",
        "The share of the time in iterations longer than 5 ms, in which everybody waited for one. "
        "High where requests take much CPU; if their CPU time is small, something blocks.",
        Query(f"rate({lagged}[$__rate_interval])", EACH),
        unit="percentunit",
        highest=1,
        nothing=NO_CONTROLLER,
    )
    failures = of_process("aiolimit_load_sensor_failures_total")
    yield lines(
        "Sensor failures per minute",
        "How often a sensor raised, or gave what is no number. The log aiolimit.load says what it "
        "was.",
        Query(f"60 * sum by (sensor) (rate({failures}[$__rate_interval]))", "{{sensor}}"),
        unit="cpm",
        nothing=NO_CONTROLLER,
    )
