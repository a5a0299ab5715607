"""What both dashboards say in the same words: whom they are about, reasons and their colours."""

from typing import Final

from grafana.dashboard import annotation, datasource_variable, label_variable
from grafana.panels import Json, Steps

__all__ = [
    "EARLY",
    "PROCESS",
    "REASONS",
    "WAITS",
    "controller_cuts",
    "process_variables",
    "shares",
]

#: The processes that are chosen. Metrics of load controllers are told apart by these only.
PROCESS: Final = 'job=~"$job", instance=~"$instance"'

#: Requests that were refused before they were parsed, and so by no limiter.
EARLY: Final = f"rate(aiolimit_load_rejected_early_total{{{PROCESS}}}[$__rate_interval])"

#: The colour of each reason, the same on both dashboards.
REASONS: Final = {
    "quota": "orange",
    "cost_too_high": "purple",
    "timeout": "yellow",
    "queue_full": "blue",
    "overload": "red",
    "overload, before parsing": "dark-red",
    "cancelled": "#8E8E8E",
}

#: Half of the calls, nearly all, and all but one of a hundred.
WAITS: Final = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))


def shares(warning: float, bad: float) -> Steps:
    """Colours of a share that is no trouble, worth a look, or bad."""
    return ((None, "green"), (warning, "yellow"), (bad, "red"))


def process_variables() -> list[Json]:
    """The variables that come first on both dashboards."""
    return [
        datasource_variable(),
        label_variable("job", "Job", "aiolimit_admitted_total", several=True),
        label_variable(
            "instance", "Instance", 'aiolimit_admitted_total{job=~"$job"}', several=True
        ),
    ]


def controller_cuts() -> Json:
    """A mark where a load controller has lowered what its process may do."""
    cuts = f'aiolimit_load_adjustments_total{{{PROCESS}, direction="down"}}'
    return annotation(
        "controller cut",
        f"sum by (controller, reason) (increase({cuts}[$__rate_interval])) > 0",
        title="Load controller {{controller}} has cut its rate",
        text="Reason: {{reason}}",
        colour="red",
    )
