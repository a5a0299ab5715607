"""What the dashboards and the alerts ask of Prometheus, in words that Prometheus understands.

Grafana's variables are replaced by values, as Grafana does it. What only chooses some of the
answers at the end, such as `> 0.2` of an alert, is left out: the query itself has to answer.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.serving import ROOT

FOLDER = ROOT / "grafana"
RULES = FOLDER / "rules" / "aiolimit.rules.yml"

# The form in which all alerts are written: PyYAML is not needed for it.
_ALERT = re.compile(r"^ +- alert: (\w+)\n(?: +#.*\n)* +expr: \|\n((?: {10}.*\n)+)", re.MULTILINE)
_COMPARISON = re.compile(r"\s*(?:==|!=|>=|<=|>|<)\s*[-+.\de]+\s*$")


def expressions(rate_interval: str, limiter: str = ".*") -> list[tuple[str, str]]:
    """All expressions there are: where each is, and PromQL that a Prometheus can answer.

    rate_interval: what `$__rate_interval` is, such as "5s"; with a scrape each second.
    limiter: a pattern of the limiters that are chosen.
    """
    found = []
    for where, expression in raw_expressions():
        text = _substituted(expression, rate_interval, limiter)
        for number, part in enumerate(_conditions(text)):
            found.append((f"{where}, part {number + 1}" if number else where, part))
    return found


def raw_expressions() -> Iterator[tuple[str, str]]:
    """All expressions as they are written, with variables and comparisons: where, and what."""
    for name, board in dashboards():
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield f"{name}: {panel['title']} {target['refId']}", target["expr"]
        for annotation in board["annotations"]["list"]:
            yield f"{name}: annotation {annotation['name']}", annotation["target"]["expr"]
    for alert, expression in alerts():
        yield f"alert {alert}", expression


def dashboards() -> list[tuple[str, dict[str, Any]]]:
    """The dashboards as they are committed, by the names of their files."""
    paths = sorted((FOLDER / "dashboards").glob("*.json"))
    return [(path.name, json.loads(path.read_text())) for path in paths]


def alerts() -> list[tuple[str, str]]:
    """The alerts by name, with the whole of their expressions in one line."""
    return [(name, " ".join(text.split())) for name, text in _ALERT.findall(RULES.read_text())]


def _substituted(expression: str, rate_interval: str, limiter: str) -> str:
    # One limiter is chosen by its name, so that its name is no pattern. Here it may be one.
    text = expression.replace('="$limiter"', '=~"$limiter"')
    values = {
        "$__rate_interval": rate_interval,
        "$__interval": rate_interval,
        "$__range": "5m",
        "$job": ".*",
        "$instance": ".*",
        "$limiter": limiter,
    }
    for variable, value in values.items():
        text = text.replace(variable, value)
    assert "$" not in text, text
    return text


def _conditions(expression: str) -> list[str]:
    """The queries between which an `and` stands, without what each is compared with."""
    parts, depth, begun = [], 0, 0
    for token in re.finditer(r"[()]|\band\b", expression):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if token[0] == "and" and depth == 0:
            parts.append(expression[begun : token.start()])
            begun = token.end()
    parts.append(expression[begun:])
    return [_COMPARISON.sub("", part).strip() for part in parts]
