"""What both dashboards say in the same words: whom they are about, reasons and their colours."""

from typing import Final

from grafana.dashboard import annotation, datasource_variable, label_variable
from grafana.panels import Json, Steps

__all__ = [
    "EARLY",
    "EVICTED",
    "KEYS",
    "NEAR",
    "PROCESS",
    "REASONS",
    "RESTRICTED",
    "WAITED",
    "WAITS",
    "WHY",
    "controller_cuts",
    "process_variables",
    "rate_of",
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
    "store_unavailable": "dark-purple",
    "cancelled": "#8E8E8E",
}

# What panels say that stand on both dashboards.
WHY: Final = (
    "quota, cost_too_high: over a limit; fine if it is that caller's fault. timeout, queue_full: "
    "more comes than the limit lets pass; raise the limit, max_wait or max_waiters. overload: the "
    "process is busy; add processes. cancelled: the caller gave up; waits are longer than callers "
    "have patience for. store_unavailable: the shared store does not answer."
)
NEAR: Final = (
    "The share of admissions after which a key had used more than 80 % of a limit. It rises before "
    "anyone is refused: tell those callers, or raise the limit."
)
WAITED: Final = (
    "Half of all calls that passed, 95 and 99 of a hundred waited no longer than this. Where only "
    "p99 is high, few keys are busy; where p50 is high, most are."
)
KEYS: Final = "Keys in memory now, some 300 bytes each. If it only grows, bound it with max_keys."
EVICTED: Final = (
    "Keys that were forgotten because they were idle. If there are many, most callers come once "
    "and never again: is the key what you want to limit by?"
)
RESTRICTED: Final = (
    "Keys that a server has asked to wait, or told of less than the limit. They wait it out; if it "
    "stays, configure less than the server allows."
)

#: Half of the calls, nearly all, and all but one of a hundred.
WAITS: Final = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))


def rate_of(limiters: str, metric: str, *, by: str = "", only: str = "") -> str:
    """The sum of a counter of limiters, as a rate.

    limiters: the matchers that choose them; `only` narrows that down.
    """
    matchers = f"{limiters}, {only}" if only else limiters
    grouped = f"sum by ({by})" if by else "sum"
    return f"{grouped} (rate({metric}{{{matchers}}}[$__rate_interval]))"


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
