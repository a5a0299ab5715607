"""The dashboard of all limiters and load controllers: what was refused comes first."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from grafana.common import (
    EARLY,
    EVICTED,
    KEYS,
    NEAR,
    PROCESS,
    REASONS,
    RESTRICTED,
    WAITED,
    WAITS,
    WHY,
    controller_cuts,
    process_variables,
    rate_of,
    shares,
)
from grafana.dashboard import Row, dashboard, label_variable, link
from grafana.load import can_do, held_back
from grafana.panels import Json, Query, lines, numbers

__all__ = ["overview"]

LIMITERS: Final = f'{PROCESS}, limiter=~"$limiter"'

#: The sum of a counter of the chosen limiters, as a rate.
rate = partial(rate_of, LIMITERS)


def overview() -> Json:
    """The whole dashboard."""
    variables = process_variables()
    series = f"aiolimit_admitted_total{{{PROCESS}}}"
    variables.append(label_variable("limiter", "Limiter", series, several=True))
    return dashboard(
        "aiolimit-overview",
        "aiolimit: overview",
        "What all limiters refuse and admit, who waits, and what the load controllers do about it. "
        "Click a line of a limiter to see that limiter alone.",
        variables=variables,
        annotations=[controller_cuts()],
        links=[
            link(
                "One limiter",
                "/d/aiolimit-limiter"
                "?${datasource:queryparam}&${job:queryparam}&${instance:queryparam}",
                "One limiter in depth",
            )
        ],
        rows=[
            Row("Rejections", list(_rejections())),
            Row("Admitted, against the limit", list(_admitted())),
            Row("Waiting", list(_waiting())),
            Row("In flight, and warm-up", list(_in_flight())),
            Row("Load: what the processes can do", list(can_do())),
            Row("Load: what holds them back", list(held_back())),
            Row("Keys, and the exporter", list(_keys())),
        ],
    )


def _rejections() -> Iterator[Json]:
    early = f"sum by (controller) ({EARLY})"
    yield lines(
        "Rejected per second, by limiter",
        "Calls that were refused. Callers who gave up waiting are not in it. Click a line to see "
        "why that limiter refuses: a caller over its quota is as it should be, all else is not.",
        Query(
            rate("aiolimit_rejected_total", by="limiter", only='reason!="cancelled"'),
            "{{limiter}}",
            linked=True,
        ),
        Query(early, "before parsing, controller {{controller}}"),
        unit="cps",
        width=10,
    )
    yield lines(
        "Rejected per second, by reason",
        WHY,
        Query(rate("aiolimit_rejected_total", by="reason"), "{{reason}}"),
        Query(f"sum ({EARLY})", "overload, before parsing"),
        unit="cps",
        width=10,
        stacked=True,
        colours=REASONS,
    )
    # Without a controller nobody is refused before parsing: then 0 is the truth.
    before_parsing = f"(sum ({EARLY}) or vector(0))"
    rejected = rate("aiolimit_rejected_total", only='reason!="cancelled"')
    all_rejected = rate("aiolimit_rejected_total")
    admitted = rate("aiolimit_admitted_total")
    yield numbers(
        "Calls rejected",
        "The share of all calls that was refused, with those refused before parsing, which are "
        "of the whole process. If it stays above a fifth, see by reason beside it.",
        Query(
            f"({rejected} + {before_parsing}) / ({admitted} + {all_rejected} + {before_parsing})",
            "rejected",
        ),
        unit="percentunit",
        height=8,
        steps=shares(0.05, 0.2),
        nothing="No calls",
    )
    yield lines(
        "Would be rejected (shadow)",
        "Calls per second that passed only because their limiter is in shadow. Where this is "
        "what you want to refuse, take shadow=True away; where it is not, raise the limit first.",
        Query(rate("aiolimit_shadow_rejected_total", by="limiter"), "{{limiter}}", linked=True),
        unit="cps",
        width=12,
        height=7,
        nothing="No limiter is in shadow",
    )
    yield lines(
        "Admissions near the limit",
        NEAR,
        Query(
            f"{rate('aiolimit_near_limit_total', by='limiter')}"
            f" / {rate('aiolimit_admitted_total', by='limiter')}",
            "{{limiter}}",
            linked=True,
        ),
        unit="percentunit",
        width=12,
        height=7,
        steps=shares(0.3, 0.8),
        highest=1,
        nothing="No calls",
    )


def _admitted() -> Iterator[Json]:
    yield lines(
        "Admitted per second",
        "Calls that passed. If it falls while rejections rise, a limit has been lowered or a "
        "process does less; if both fall, less is asked for.",
        Query(rate("aiolimit_admitted_total", by="limiter"), "{{limiter}}", linked=True),
        unit="cps",
        width=12,
    )
    used = (
        f"sum by (limiter) (rate(aiolimit_cost_admitted_total{{{LIMITERS}}}[$__rate_interval])"
        f" - rate(aiolimit_cost_returned_total{{{LIMITERS}}}[$__rate_interval]))"
    )
    allowed = (
        f"sum by (limiter, per) (aiolimit_limit{{{LIMITERS}}}"
        f" / aiolimit_limit_period_seconds{{{LIMITERS}}})"
    )
    yield lines(
        "Share of the limit used",
        "The cost that passed, held against the limit in force, for each rate by its period. A "
        "limit is for each key, so this is exact for limiters with one key; with many keys it may "
        "be above 1. A limit that comes with a call (limit=) is not known here. Near 1 for long: "
        "raise the limit, or ask for less.",
        Query(f"{used} / on (limiter) group_right () {allowed}", "{{limiter}} per {{per}}", True),
        unit="percentunit",
        width=12,
        steps=shares(0.8, 1),
        highest=1,
    )


def _waiting() -> Iterator[Json]:
    yield lines(
        "Waiting",
        "Callers that wait for their turn now. If it only grows, more comes than the limit lets "
        "pass: set max_wait or max_waiters, or raise the limit.",
        Query(f"sum by (limiter) (aiolimit_waiting{{{LIMITERS}}})", "{{limiter}}", linked=True),
        unit="short",
    )
    yield lines(
        "Wait of the slowest of a hundred (p99)",
        "How long calls waited that passed; a millisecond is nothing. Where it nears max_wait, "
        "calls are about to be refused; compare it with the patience of your callers.",
        Query(
            f"histogram_quantile(0.99, {rate('aiolimit_wait_seconds_bucket', by='limiter, le')})",
            "{{limiter}}",
            linked=True,
        ),
        unit="s",
        nothing="No calls",
    )
    yield lines(
        "Wait of all calls",
        WAITED,
        *(
            Query(
                f"histogram_quantile({share}, {rate('aiolimit_wait_seconds_bucket', by='le')})",
                name,
            )
            for share, name in WAITS
        ),
        unit="s",
        nothing="No calls",
    )


def _in_flight() -> Iterator[Json]:
    yield lines(
        "In flight",
        "Calls inside their `async with` now. If it grows while admissions do not, what is done "
        "inside has become slow.",
        Query(f"sum by (limiter) (aiolimit_in_flight{{{LIMITERS}}})", "{{limiter}}", linked=True),
        unit="short",
        width=12,
        height=7,
    )
    yield lines(
        "Warm-up",
        "How warm the coldest process is: at 1 the whole limit is in force. Where it does not "
        "rise there is no traffic. Without a warm-up it is 1.",
        Query(
            f"min by (limiter) (aiolimit_warm_up_ratio{{{LIMITERS}}})", "{{limiter}}", linked=True
        ),
        unit="percentunit",
        width=12,
        height=7,
        highest=1,
        nothing="Each key warms up by itself",
    )


def _keys() -> Iterator[Json]:
    yield lines(
        "Keys held",
        KEYS,
        Query(f"sum by (limiter) (aiolimit_keys{{{LIMITERS}}})", "{{limiter}}", linked=True),
        unit="short",
        width=6,
    )
    yield lines(
        "Keys evicted per second",
        EVICTED,
        Query(rate("aiolimit_keys_evicted_total", by="limiter"), "{{limiter}}", linked=True),
        unit="cps",
        width=6,
    )
    yield lines(
        "Keys restricted",
        RESTRICTED,
        Query(
            f"sum by (limiter) (aiolimit_keys_restricted{{{LIMITERS}}})",
            "{{limiter}}",
            linked=True,
        ),
        unit="short",
        width=6,
    )
    errors = f"aiolimit_exporter_errors_total{{{PROCESS}}}"
    yield numbers(
        "Exporter errors per minute",
        "Values that could not be read, so that something is missing above. The log "
        "aiolimit.metrics says why.",
        Query(
            f"60 * sum by (job, instance) (rate({errors}[$__rate_interval]))",
            "{{job}} {{instance}}",
        ),
        unit="cpm",
        width=6,
        height=8,
        steps=((None, "green"), (0.001, "red")),
    )
