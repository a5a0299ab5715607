"""A Grafana dashboard around its panels: variables, marks, links, and where each panel stands.

The JSON is of the classic kind, schema version 41, which Grafana 11 to 13 load from files. The
dashboards themselves are described in `overview.py` and `limiter.py`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from grafana.panels import DATASOURCE, Json

__all__ = [
    "COLUMNS",
    "Row",
    "annotation",
    "dashboard",
    "datasource_variable",
    "label_variable",
    "link",
]

SCHEMA_VERSION: Final = 41
COLUMNS: Final = 24


@dataclass(frozen=True, slots=True)
class Row:
    """A heading, and the panels under it, from left to right."""

    title: str
    panels: Sequence[Json]


def link(title: str, url: str, tooltip: str) -> Json:
    """A link at the top of a dashboard, which takes the time range along."""
    return {
        "type": "link",
        "title": title,
        "url": url,
        "tooltip": tooltip,
        "icon": "dashboard",
        "tags": [],
        "asDropdown": False,
        "includeVars": False,
        "keepTime": True,
        "targetBlank": False,
    }


def datasource_variable() -> Json:
    """The choice of a data source, which comes first as all others ask it."""
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "regex": "",
        "options": [],
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "refresh": 1,
        "skipUrlSync": False,
    }


def label_variable(name: str, label: str, series: str, *, several: bool) -> Json:
    """The choice of one value of a label, or of several; `series` tells which values there are."""
    query = f"label_values({series}, {name})"
    variable: Json = {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": "StandardVariableQuery"},
        "regex": "",
        "options": [],
        "hide": 0,
        "includeAll": several,
        "multi": several,
        "refresh": 2,  # whenever the time range changes: limiters come and go
        "sort": 1,
        "skipUrlSync": False,
    }
    if several:
        variable["allValue"] = ".*"
        variable["current"] = {"selected": True, "text": ["All"], "value": ["$__all"]}
    return variable


def annotation(name: str, expression: str, *, title: str, text: str, colour: str) -> Json:
    """Marks on all panels while the expression gives something above 0."""
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": True,
        "hide": False,
        "iconColor": colour,
        "target": {"expr": expression, "refId": "Anno", "interval": ""},
        "titleFormat": title,
        "textFormat": text,
        "tagKeys": "reason",
    }


def dashboard(
    uid: str,
    title: str,
    description: str,
    *,
    variables: Sequence[Json],
    annotations: Sequence[Json],
    links: Sequence[Json],
    rows: Iterable[Row],
) -> Json:
    """A whole dashboard."""
    return {
        "id": None,
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["aiolimit"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # the time under the pointer is shown in all panels
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "links": list(links),
        "annotations": {"list": list(annotations)},
        "templating": {"list": list(variables)},
        "panels": _laid_out(rows),
    }


def _laid_out(rows: Iterable[Row]) -> list[Json]:
    """All panels with their numbers and places: from left to right, and on below what is full."""
    panels: list[Json] = []
    top = 0
    for row in rows:
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": top}
        heading = {"id": len(panels) + 1, "type": "row", "title": row.title, "gridPos": place}
        panels.append(heading | {"collapsed": False, "panels": []})
        left, top, below = 0, top + 1, top + 1
        for panel in row.panels:
            width, height = panel["gridPos"]["w"], panel["gridPos"]["h"]
            if left + width > COLUMNS:
                left, top = 0, below
            place = {"h": height, "w": width, "x": left, "y": top}
            panels.append({"id": len(panels) + 1} | panel | {"gridPos": place})
            left, below = left + width, max(below, top + height)
        top = below
    return panels
