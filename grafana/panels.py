"""The panels of a Grafana dashboard, as the JSON that Grafana reads.

What holds for all of them:

1. Each says what it tells and what to do about it, and has a unit.
2. Each query goes to the data source that is chosen at the top of the dashboard.
3. Reasons have the same colours everywhere (`colours`), as they are looked for most.
4. Where there is nothing to show, the panel says why (`nothing`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, Final, TypeAlias

__all__ = ["CALM", "DATASOURCE", "Json", "Query", "Steps", "heatmap", "lines", "numbers", "states"]

Json: TypeAlias = dict[str, Any]

#: Colours, each from a value on; the first has none.
Steps: TypeAlias = Sequence[tuple[float | None, str]]

DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

#: The colours of what is no trouble at any height.
CALM: Final[Steps] = ((None, "green"),)

# The other dashboard, for the limiter that a line is of, with all else as it is chosen here.
_TO_LIMITER: Final = (
    "/d/aiolimit-limiter?var-limiter=${__field.labels.limiter}"
    "&${datasource:queryparam}&${job:queryparam}&${instance:queryparam}&${__url_time_range}"
)


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel.

    expression: PromQL.
    legend: what its lines are called, with labels as `{{label}}`.
    linked: whether a click on a line leads to the dashboard of its limiter.
    dashed: whether its lines are dashed, as limits are.
    """

    expression: str
    legend: str
    linked: bool = False
    dashed: bool = False


def lines(
    title: str,
    description: str,
    *queries: Query,
    unit: str,
    width: int = 8,
    height: int = 8,
    stacked: bool = False,
    colours: Mapping[str, str] | None = None,
    mirrored: str | None = None,
    steps: Steps = CALM,
    highest: float | None = None,
    nothing: str = "No data",
) -> Json:
    """Values over time.

    stacked: whether the lines add up to a whole.
    colours: of lines, by name.
    mirrored: a pattern of the names of those lines that are drawn downwards.
    steps: drawn as dashed lines where there are any.
    highest: what the axis reaches at least.
    """
    custom: Json = {
        "drawStyle": "line",
        "lineInterpolation": "linear",
        # In a stack the line of a 0 would lie on what is below it, in its own colour.
        "lineWidth": 0 if stacked else 1,
        "fillOpacity": 70 if stacked else 8,
        "gradientMode": "none",
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"group": "A", "mode": "normal" if stacked else "none"},
        "axisPlacement": "auto",
        "scaleDistribution": {"type": "linear"},
        "thresholdsStyle": {"mode": "dashed" if len(steps) > 1 else "off"},
    }
    if highest is not None:
        custom["axisSoftMax"] = highest
    overrides = _dashed(queries) + _linked(queries) + _coloured(colours or {})
    if mirrored is not None:
        properties: list[Json] = [{"id": "custom.transform", "value": "negative-Y"}]
        overrides.append(_override("byRegexp", mirrored, properties))
    defaults: Json = {"color": {"mode": "palette-classic"}, "custom": custom}
    if mirrored is None:
        defaults["min"] = 0
    return _panel(
        "timeseries",
        title,
        description,
        _targets(queries),
        size=(width, height),
        unit=unit,
        steps=steps,
        nothing=nothing,
        defaults=defaults,
        overrides=overrides,
        options={
            "legend": {
                "displayMode": "table",
                "placement": "bottom",
                "showLegend": True,
                "calcs": ["lastNotNull", "max"],
                "sortBy": "Last *",
                "sortDesc": True,
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    )


def numbers(
    title: str,
    description: str,
    *queries: Query,
    unit: str,
    width: int = 4,
    height: int = 5,
    steps: Steps = CALM,
    nothing: str = "No data",
) -> Json:
    """The newest values as numbers, with a small curve behind them."""
    return _panel(
        "stat",
        title,
        description,
        _targets(queries),
        size=(width, height),
        unit=unit,
        steps=steps,
        nothing=nothing,
        defaults={"color": {"mode": "thresholds"}, "min": 0},
        overrides=_linked(queries),
        options={
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "area",
            "justifyMode": "auto",
            "orientation": "auto",
            "textMode": "auto",
            "wideLayout": True,
            "showPercentChange": False,
            "percentChangeColorMode": "standard",
        },
    )


def states(
    title: str,
    description: str,
    query: Query,
    *,
    shown: Mapping[int, tuple[str, str]],
    shown_of: Mapping[str, Mapping[int, tuple[str, str]]] | None = None,
    width: int = 8,
    height: int = 8,
    nothing: str = "No data",
) -> Json:
    """One bar over time for each line: what it was when.

    shown: the text and colour of each value; `shown_of` those of single lines, by name.
    """
    return _panel(
        "state-timeline",
        title,
        description,
        _targets([query]),
        size=(width, height),
        unit="short",
        steps=CALM,
        nothing=nothing,
        defaults={
            "color": {"mode": "thresholds"},
            "custom": {"lineWidth": 0, "fillOpacity": 75},
            "mappings": _mappings(shown),
        },
        overrides=[
            _override("byName", name, [{"id": "mappings", "value": _mappings(own)}])
            for name, own in (shown_of or {}).items()
        ],
        options={
            "mergeValues": True,
            "showValue": "auto",
            "alignValue": "left",
            "rowHeight": 0.85,
            "legend": {
                "displayMode": "list",
                "placement": "bottom",
                "showLegend": False,  # each bar has its name beside it
                "calcs": [],
            },
            "tooltip": {"mode": "single", "sort": "none"},
        },
    )


def heatmap(
    title: str,
    description: str,
    expression: str,
    *,
    unit: str,
    of: str,
    width: int = 8,
    height: int = 8,
    nothing: str = "No data",
) -> Json:
    """How many were in each bucket of a histogram, over time.

    unit: of the buckets' bounds; `of`: the unit of what is counted in them.
    """
    return _panel(
        "heatmap",
        title,
        description,
        [_target("A", expression, "{{le}}") | {"format": "heatmap"}],
        size=(width, height),
        unit=unit,
        steps=CALM,
        nothing=nothing,
        defaults={"custom": {"scaleDistribution": {"type": "linear"}}},
        overrides=[],
        options={
            "calculate": False,
            "cellGap": 1,
            "cellValues": {"unit": of},
            "color": {
                "mode": "scheme",
                "scheme": "Oranges",
                "fill": "dark-orange",
                "scale": "exponential",
                "exponent": 0.5,
                "steps": 64,
                "reverse": False,
            },
            "exemplars": {"color": "rgba(255,0,255,0.7)"},
            "filterValues": {"le": 1e-9},
            "rowsFrame": {"layout": "auto"},
            "showValue": "never",
            "legend": {"show": True},
            "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": True},
            "yAxis": {"axisPlacement": "left", "reverse": False, "unit": unit},
        },
    )


def _panel(
    kind: str,
    title: str,
    description: str,
    targets: Sequence[Json],
    *,
    size: tuple[int, int],
    unit: str,
    steps: Steps,
    nothing: str,
    defaults: Json,
    overrides: Sequence[Json],
    options: Json,
) -> Json:
    thresholds = [{"color": colour, "value": value} for value, colour in steps]
    return {
        "type": kind,
        "title": title,
        "description": description,
        "gridPos": {"w": size[0], "h": size[1]},
        "datasource": DATASOURCE,
        "targets": list(targets),
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "noValue": nothing,
                "thresholds": {"mode": "absolute", "steps": thresholds},
                **defaults,
            },
            "overrides": list(overrides),
        },
        "options": options,
    }


def _target(letter: str, expression: str, legend: str) -> Json:
    return {
        "refId": letter,
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": expression,
        "legendFormat": legend,
        "range": True,
        "instant": False,
    }


def _targets(queries: Sequence[Query]) -> list[Json]:
    return [
        _target(letter, query.expression, query.legend)
        for letter, query in zip(ascii_uppercase, queries, strict=False)
    ]


def _override(by: str, what: str, properties: Sequence[Json]) -> Json:
    return {"matcher": {"id": by, "options": what}, "properties": list(properties)}


def _dashed(queries: Sequence[Query]) -> list[Json]:
    properties: list[Json] = [
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [10, 10]}},
        {"id": "custom.fillOpacity", "value": 0},
    ]
    return [
        _override("byFrameRefID", letter, properties)
        for letter, query in zip(ascii_uppercase, queries, strict=False)
        if query.dashed
    ]


def _linked(queries: Sequence[Query]) -> list[Json]:
    leads = {"title": "Open ${__field.labels.limiter}", "url": _TO_LIMITER, "targetBlank": False}
    return [
        _override("byFrameRefID", letter, [{"id": "links", "value": [leads]}])
        for letter, query in zip(ascii_uppercase, queries, strict=False)
        if query.linked
    ]


def _coloured(colours: Mapping[str, str]) -> list[Json]:
    overrides = []
    for name, colour in colours.items():
        fixed: Json = {"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}
        overrides.append(_override("byName", name, [fixed]))
    return overrides


def _mappings(shown: Mapping[int, tuple[str, str]]) -> list[Json]:
    options = {
        str(value): {"text": text, "color": colour, "index": index}
        for index, (value, (text, colour)) in enumerate(shown.items())
    }
    return [{"type": "value", "options": options}]
