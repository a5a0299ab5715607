"""What there is to measure of a load controller, and so of its process."""

from typing import Final

from aiolimit.load.controller import LoadController
from aiolimit.watch.instrument import Instrument, Values, known, one

__all__ = ["LOAD"]


def _pressures(load: LoadController) -> Values:
    state = load.state
    cpu = {"cpu": state.busy / load.targets.cpu, "in_flight": load.in_flight / state.cap}
    for signal, pressure in {**cpu, **state.pressures}.items():
        yield (signal,), pressure


def _binding(load: LoadController) -> Values:
    state = load.state
    for signal in ("cpu", *state.pressures):
        yield (signal,), float(signal == state.binding)


def _adjustments(load: LoadController) -> Values:
    return tuple(load.adjustments.counts.items())


def _sensors_up(load: LoadController) -> Values:
    for sensor, up in load.sensors().items():
        yield (sensor,), float(up)


def _sensor_failures(load: LoadController) -> Values:
    for sensor, count in load.sensor_failures().items():
        yield (sensor,), count


#: What is told of each load controller.
LOAD: Final[tuple[Instrument[LoadController], ...]] = (
    Instrument(
        "aiolimit_load_rate",
        "gauge",
        "Requests a second that this process can do, as its load controller has measured. Where "
        "more are asked for the rest is refused with reason overload; add processes.",
        "{request}/s",
        (),
        known(lambda load: load.state.rate),
    ),
    Instrument(
        "aiolimit_load_admitted",
        "counter",
        "Calls that all limiters of the load controller have let pass. With those it has rejected "
        "it is what was asked of the process, to be held against what that can do.",
        "{call}",
        (),
        one(lambda load: load.admitted),
    ),
    Instrument(
        "aiolimit_load_rejected",
        "counter",
        "Calls that the load controller has refused, with those that were before they were "
        "parsed. Add processes where it keeps rising.",
        "{call}",
        (),
        one(lambda load: load.refused),
    ),
    Instrument(
        "aiolimit_load_in_flight",
        "gauge",
        "Calls in flight as the load controller counts them. At its limit new ones are refused.",
        "{call}",
        (),
        one(lambda load: load.in_flight),
    ),
    Instrument(
        "aiolimit_load_in_flight_limit",
        "gauge",
        "How many calls may be in flight, so that they are served in time.",
        "{call}",
        (),
        known(lambda load: load.state.cap),
    ),
    Instrument(
        "aiolimit_load_request_cost_seconds",
        "gauge",
        "CPU time of the event loop that a request takes. If it jumps, look at what was deployed.",
        "s",
        (),
        known(lambda load: load.state.cost),
        "max",
    ),
    Instrument(
        "aiolimit_load_busy_ratio",
        "gauge",
        "The share of its CPU that the event loop used in the last step. 1 is no trouble by "
        "itself: what is in flight is bounded.",
        "1",
        (),
        one(lambda load: load.state.busy),
        "max",
    ),
    Instrument(
        "aiolimit_load_share_ratio",
        "gauge",
        "The part of a core that the event loop can get. Below 1 others use the machine, or a "
        "cgroup's cpu.max throttles it; give it more, or move the neighbours.",
        "1",
        (),
        one(lambda load: load.state.share),
        "min",
    ),
    Instrument(
        "aiolimit_load_pressure",
        "gauge",
        "Each signal against its target, which is 1. Above 1 memory, stall, gc and your own "
        "sensors lower the rate; cpu and in_flight at 1 mean that all is used.",
        "1",
        ("signal",),
        _pressures,
        "max",
    ),
    Instrument(
        "aiolimit_load_binding",
        "gauge",
        "1 for the signal that decides what this process may do, 0 for the others. Anything but "
        "cpu is a shortage to look into.",
        "1",
        ("signal",),
        _binding,
        "max",
    ),
    Instrument(
        "aiolimit_load_adjustments",
        "counter",
        "How often the load controller changed its rate by a fifth, by direction and by what "
        "moved it: cost of a request, share of the core, cost of refusals, or a pressure's name.",
        "{adjustment}",
        ("direction", "reason"),
        _adjustments,
    ),
    Instrument(
        "aiolimit_load_loop_lag_seconds",
        "gauge",
        "The longest iteration of the event loop in the last 10 s. Far above a request's cost "
        "something blocks the loop: find it with PYTHONASYNCIODEBUG=1. Or others had the "
        "CPU: then the share is low.",
        "s",
        (),
        one(lambda load: load.lag),
        "max",
    ),
    Instrument(
        "aiolimit_load_loop_lagged_seconds",
        "counter",
        "Time in iterations of the event loop that took longer than 5 ms. As a rate it is the "
        "share of the time in which everybody waited for one.",
        "s",
        (),
        one(lambda load: load.lagged),
    ),
    Instrument(
        "aiolimit_load_rejected_early",
        "counter",
        "Requests that were refused for overload before they were parsed, and so by no limiter.",
        "{request}",
        (),
        one(lambda load: load.refused_early),
    ),
    Instrument(
        "aiolimit_load_would_reject",
        "counter",
        "Calls that a load controller with dry_run=True let pass, and would have held up.",
        "{call}",
        (),
        one(lambda load: load.would_refuse),
    ),
    Instrument(
        "aiolimit_load_sensor_up",
        "gauge",
        "1 for each sensor that answers, 0 for those that do not. In containers and on systems "
        "other than Linux some never do; a sensor that was up and is not is a fault to look into.",
        "1",
        ("sensor",),
        _sensors_up,
        "min",
    ),
    Instrument(
        "aiolimit_load_sensor_failures",
        "counter",
        "How often a sensor raised, or gave what is no number. The log says what it was.",
        "{failure}",
        ("sensor",),
        _sensor_failures,
    ),
)
