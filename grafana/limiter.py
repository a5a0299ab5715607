"""The dashboard of one limiter, in more depth."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from grafana.common import (
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
from grafana.panels import Json, Query, heatmap, lines, numbers

__all__ = ["limiter"]

# One value, and so not a pattern: a name may hold what means something else in one.
LIMITER: Final = f'{PROCESS}, limiter="$limiter"'

REFUSED: Final = 'reason!="cancelled"'

#: The sum of a counter of the limiter, as a rate.
rate = partial(rate_of, LIMITER)


def now(metric: str, *, by: str = "") -> str:
    """The sum of a gauge of the limiter."""
    grouped = f"sum by ({by})" if by else "sum"
    return f"{grouped} ({metric}{{{LIMITER}}})"


def per_second(metric: str) -> str:
    """A limit of the limiter as cost per second, for each of its rates."""
    return f"sum by (per) ({metric}{{{LIMITER}}} / aiolimit_limit_period_seconds{{{LIMITER}}})"


def used() -> str:
    """The cost that passed and was not given back, per second."""
    return f"{rate('aiolimit_cost_admitted_total')} - {rate('aiolimit_cost_returned_total')}"


def limiter() -> Json:
    """The whole dashboard."""
    variables = process_variables()
    series = f"aiolimit_admitted_total{{{PROCESS}}}"
    variables.append(label_variable("limiter", "Limiter", series, several=False))
    return dashboard(
        "aiolimit-limiter",
        "aiolimit: one limiter",
        "Why one limiter refuses, how much of its limits is used, and how long its callers wait. "
        "All processes that are chosen count together, and so do their limits.",
        variables=variables,
        annotations=[controller_cuts()],
        links=[
            link(
                "Overview",
                "/d/aiolimit-overview"
                "?${datasource:queryparam}&${job:queryparam}&${instance:queryparam}",
                "All limiters, and the load of the processes",
            )
        ],
        rows=[
            Row("Now", list(_now())),
            Row("Rejections", list(_rejections())),
            Row("Admitted, against the limits", list(_admitted())),
            Row("Waiting", list(_waiting())),
            Row("Warm-up", list(_warm_up())),
            Row("Keys", list(_keys())),
            Row("By process", list(_by_process())),
            Row("Shared store", list(_store())),
        ],
    )


def _now() -> Iterator[Json]:
    yield numbers(
        "Admitted per second",
        "Calls that passed. The row below tells how this stands against the limits.",
        Query(rate("aiolimit_admitted_total"), "admitted"),
        unit="cps",
    )
    yield numbers(
        "Rejected per second",
        "Calls that were refused, but not those of callers who gave up. The next row says why.",
        Query(rate("aiolimit_rejected_total", only=REFUSED), "rejected"),
        unit="cps",
        steps=((None, "green"), (0.001, "yellow")),
    )
    yield numbers(
        "Waiting",
        "Callers that wait for their turn now. If it only grows, set max_wait or max_waiters, or "
        "raise the limit.",
        Query(now("aiolimit_waiting"), "waiting"),
        unit="short",
    )
    yield numbers(
        "In flight",
        "Calls inside their `async with` now. If it grows while admissions do not, what is done "
        "inside has become slow.",
        Query(now("aiolimit_in_flight"), "in flight"),
        unit="short",
    )
    yield numbers(
        "Limit now",
        "The limit of each rate in force for each key, in its period, of all processes together. "
        "Below the configured one while the limiter warms up. Limiter.update changes it.",
        Query(now("aiolimit_limit", by="per"), "per {{per}}"),
        unit="short",
    )
    yield numbers(
        "Keys",
        "Keys in memory now, some 300 bytes each. Bound them with max_keys.",
        Query(now("aiolimit_keys"), "keys"),
        unit="short",
    )


def _rejections() -> Iterator[Json]:
    yield lines(
        "Rejected per second, by reason",
        WHY,
        Query(rate("aiolimit_rejected_total", by="reason"), "{{reason}}"),
        unit="cps",
        width=12,
        stacked=True,
        colours=REASONS,
    )
    yield lines(
        "Share of calls rejected",
        "Of all calls that were made. If it stays above a fifth, see by reason beside it. Requests "
        "refused before parsing belong to no limiter; the overview has them.",
        Query(
            f"{rate('aiolimit_rejected_total', only=REFUSED)} / "
            f"({rate('aiolimit_admitted_total')} + {rate('aiolimit_rejected_total')})",
            "rejected",
        ),
        unit="percentunit",
        width=12,
        steps=shares(0.05, 0.2),
        nothing="No calls",
    )
    yield lines(
        "Admissions near the limit",
        NEAR,
        Query(
            f"{rate('aiolimit_near_limit_total')} / {rate('aiolimit_admitted_total')}",
            "near the limit",
        ),
        unit="percentunit",
        width=12,
        height=7,
        steps=shares(0.3, 0.8),
        highest=1,
        nothing="No calls",
    )
    # Told of shadows only. Where there is none nobody would be refused, and the panel says so.
    none = f"0 * {rate('aiolimit_admitted_total')}"
    nobody = f'label_replace({none}, "reason", "not in shadow", "", "")'
    yield lines(
        "Would be rejected (shadow)",
        "Calls per second that passed only because the limiter is in shadow, by why it would have "
        "refused them. Where this is what you want to refuse, take shadow=True away.",
        Query(
            f"{rate('aiolimit_shadow_rejected_total', by='reason')} or on () {nobody}", "{{reason}}"
        ),
        unit="cps",
        width=12,
        height=7,
        stacked=True,
        colours=REASONS,
    )


def _admitted() -> Iterator[Json]:
    yield lines(
        "Cost per second, against the limits",
        "The cost that passed and was not given back, and dashed each limit in force, divided by "
        "its period. A limit is for each key: with one key the lines cannot cross for long, with "
        "many they may.",
        Query(used(), "used"),
        Query(per_second("aiolimit_limit"), "limit now, per {{per}}", dashed=True),
        Query(
            per_second("aiolimit_limit_configured"), "limit configured, per {{per}}", dashed=True
        ),
        unit="cps",
        width=12,
    )
    yield lines(
        "Share of the limit used",
        "The same as a share, for each rate by its period. It is exact for limiters with one key. "
        "A limit that comes with a call (limit=) is not known here. Near 1 for long: raise the "
        "limit, or ask for less.",
        Query(
            f"({used()}) / on () group_right () {per_second('aiolimit_limit')}",
            "per {{per}}",
        ),
        unit="percentunit",
        width=12,
        steps=shares(0.8, 1),
        highest=1,
    )
    yield lines(
        "Cost admitted and returned",
        "Returned is what callers gave back, as they used less than they asked for or cancelled. "
        "Where it is much of what is admitted, ask for less in the first place.",
        Query(rate("aiolimit_cost_admitted_total"), "admitted"),
        Query(rate("aiolimit_cost_returned_total"), "returned"),
        unit="cps",
        width=12,
    )
    yield lines(
        "Limits, in their periods",
        "Each limit in force for each key, and dashed as it is configured. They differ while the "
        "limiter warms up. Limiter.update changes them.",
        Query(now("aiolimit_limit", by="per"), "now, per {{per}}"),
        Query(now("aiolimit_limit_configured", by="per"), "configured, per {{per}}", dashed=True),
        unit="short",
        width=12,
    )


def _waiting() -> Iterator[Json]:
    yield heatmap(
        "How long calls waited",
        "Calls per second that passed, by how long they had waited; most have not waited at all. "
        "Where the upper rows near max_wait fill up, calls are about to be refused.",
        rate("aiolimit_wait_seconds_bucket", by="le"),
        unit="s",
        of="cps",
        nothing="No calls",
    )
    mean = f"{rate('aiolimit_wait_seconds_sum')} / {rate('aiolimit_wait_seconds_count')}"
    yield lines(
        "Wait, quantiles and mean",
        WAITED,
        *(
            Query(
                f"histogram_quantile({share}, {rate('aiolimit_wait_seconds_bucket', by='le')})",
                name,
            )
            for share, name in WAITS
        ),
        Query(mean, "mean", dashed=True),
        unit="s",
        nothing="No calls",
    )
    yield lines(
        "Waiting, and in flight",
        "Callers that wait for their turn, and those whose turn it is. If waiting only grows, more "
        "comes than the limit lets pass.",
        Query(now("aiolimit_waiting"), "waiting"),
        Query(now("aiolimit_in_flight"), "in flight"),
        unit="short",
    )


def _warm_up() -> Iterator[Json]:
    yield lines(
        "Warm-up",
        "How warm each process is: at 1 the whole limit is in force. Where it does not rise there "
        "is no traffic. Without a warm-up it is 1.",
        Query(f"aiolimit_warm_up_ratio{{{LIMITER}}}", "{{job}} {{instance}}"),
        unit="percentunit",
        width=12,
        height=7,
        highest=1,
        nothing="Each key warms up by itself",
    )
    yield lines(
        "Limit in force, of the one configured",
        "What the warm-up leaves of each limit, of all processes together. 1 is all of it. If it "
        "stays lower, the limiter gets too little traffic to warm up, or processes restart.",
        Query(
            f"{now('aiolimit_limit', by='per')} / {now('aiolimit_limit_configured', by='per')}",
            "per {{per}}",
        ),
        unit="percentunit",
        width=12,
        height=7,
        highest=1,
    )


def _keys() -> Iterator[Json]:
    yield lines(
        "Keys held",
        KEYS,
        Query(now("aiolimit_keys"), "keys"),
        unit="short",
        height=7,
    )
    yield lines(
        "Keys evicted per second",
        EVICTED,
        Query(rate("aiolimit_keys_evicted_total"), "evicted"),
        unit="cps",
        height=7,
    )
    yield lines(
        "Keys restricted",
        RESTRICTED,
        Query(now("aiolimit_keys_restricted"), "restricted"),
        unit="short",
        height=7,
    )


def _by_process() -> Iterator[Json]:
    yield lines(
        "Admitted per second, by process",
        "Each process counts for itself. If one gets much more than the others, so do the keys "
        "that meet it: look at how connections are spread.",
        Query(rate("aiolimit_admitted_total", by="job, instance"), "{{job}} {{instance}}"),
        unit="cps",
        width=12,
        height=7,
    )
    yield lines(
        "Rejected per second, by process",
        "Calls that were refused, but not those of callers who gave up. If one process refuses "
        "and others do not, it gets more traffic, or can do less.",
        Query(
            rate("aiolimit_rejected_total", by="job, instance", only=REFUSED),
            "{{job}} {{instance}}",
        ),
        unit="cps",
        width=12,
        height=7,
    )


def _store() -> Iterator[Json]:
    yield lines(
        "Decisions per second, by source",
        "store: the store that processes share. local: this process; with a store, because it did "
        "not answer, and then each process lets its part of the limit through. open, closed: "
        "everybody or nobody passes meanwhile, as was chosen with on_store_error.",
        Query(rate("aiolimit_decisions_total", by="source"), "{{source}}"),
        unit="cps",
        width=16,
        height=7,
        stacked=True,
        colours={"store": "green", "local": "blue", "open": "orange", "closed": "red"},
    )
    yield numbers(
        "Processes whose store answers",
        "The share of the processes that have an answer from the store, or need none. Below 100 % "
        "look at the engine, and at the network in between.",
        Query(f"avg (aiolimit_store_up{{{LIMITER}}})", "answers"),
        unit="percentunit",
        width=8,
        height=7,
        steps=((None, "red"), (0.999, "green")),
    )
