"""The dashboards and the alerts: they are what is described, and ask for what there is."""

import re
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from aiolimit.watch.roster import INSTRUMENTS, label_names
from grafana.generate import FOLDER, texts
from grafana.panels import DATASOURCE
from tests.programs import promtool
from tests.prometheus import RULES, alerts, dashboards, expressions, raw_expressions

BOARDS = dashboards()
EXPRESSIONS = list(raw_expressions())

#: What Prometheus adds to all that it scrapes.
TARGET = {"job", "instance"}

Panel = dict[str, Any]


def samples() -> dict[str, set[str]]:
    """All names that a scrape can hold, and the labels of each."""
    found: dict[str, set[str]] = {}
    for instrument in INSTRUMENTS:
        labels = TARGET | set(label_names(instrument))
        if instrument.kind == "counter":
            found[f"{instrument.name}_total"] = labels
        elif instrument.kind == "gauge":
            found[instrument.name] = labels
        else:
            found[f"{instrument.name}_bucket"] = labels | {"le"}
            found[f"{instrument.name}_sum"] = found[f"{instrument.name}_count"] = labels
    return found


SAMPLES = samples()
METRIC = re.compile(r"\baiolimit_\w+")
SELECTOR = re.compile(r"(\baiolimit_\w+)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)(?:=~|!~|!=|=)"(?:[^"\\]|\\.)*"')
GROUPING = re.compile(r"\b(\w+) (?:by|without) \(([^)]*)\) \(")


def names(text: str) -> set[str]:
    """The labels of a list such as "job, limiter"."""
    return {name.strip() for name in text.split(",")} - {""}


def panels(board: dict[str, Any]) -> list[Panel]:
    """The panels that show something."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def enclosed(text: str, begun: int) -> str:
    """What is between the bracket before that place and the one that closes it."""
    depth = 1
    for place in range(begun, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return text[begun:place]
    raise AssertionError(f"a bracket stays open in {text}")


def checked(*arguments: str) -> str:
    command = [promtool(), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=FOLDER.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_is_committed_is_what_the_description_makes() -> None:
    made = texts()
    committed = {path.name: path.read_text() for path in FOLDER.glob("*")}
    assert committed == made, "run `python -m grafana.generate`"


def test_each_dashboard_is_known_by_a_name_that_stays() -> None:
    assert {board["uid"] for _, board in BOARDS} == {"aiolimit-overview", "aiolimit-limiter"}
    for _, board in BOARDS:
        assert board["id"] is None
        assert board["schemaVersion"] in (41, 42)
        assert board["tags"] == ["aiolimit"]


def test_the_dashboards_lead_to_each_other() -> None:
    for _, board in BOARDS:
        others = {other["uid"] for _, other in BOARDS} - {board["uid"]}
        linked = {re.split(r"[/?]", one["url"])[2] for one in board["links"]}
        assert linked == others


def test_each_line_of_a_limiter_leads_to_the_dashboard_of_that_limiter() -> None:
    overview = dict(BOARDS)["overview.json"]
    for panel in panels(overview):
        linked = {
            override["matcher"]["options"]: one["value"][0]["url"]
            for override in panel["fieldConfig"]["overrides"]
            for one in override["properties"]
            if one["id"] == "links"
        }
        of_limiters = {
            target["refId"]
            for target in panel["targets"]
            if "{{limiter}}" in target["legendFormat"]
        }
        assert set(linked) == of_limiters, panel["title"]
        for url in linked.values():
            assert url.startswith("/d/aiolimit-limiter?var-limiter=${__field.labels.limiter}&")


@pytest.mark.parametrize(("name", "board"), BOARDS)
def test_panels_have_numbers_of_their_own_and_places_of_their_own(
    name: str, board: dict[str, Any]
) -> None:
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert min(place.values()) >= 0
        assert 0 < place["w"] <= 24 - place["x"], panel["title"]
        assert place["h"] > 0
    for one, other in combinations(board["panels"], 2):
        a, b = one["gridPos"], other["gridPos"]
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or above, (name, one["title"], other["title"])


@pytest.mark.parametrize(("name", "board"), BOARDS)
def test_each_panel_says_what_it_shows(name: str, board: dict[str, Any]) -> None:
    assert all(panel["title"] for panel in board["panels"]), name
    titles = [panel["title"] for panel in panels(board)]
    assert len(set(titles)) == len(titles), name
    assert board["panels"][0]["type"] == "row"
    for panel in panels(board):
        assert len(panel["description"]) > 40, panel["title"]
        assert panel["description"][-1] in ".?", panel["title"]
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"], panel["title"]
        assert defaults["thresholds"]["steps"][0]["value"] is None
        if panel["type"] == "timeseries":
            assert panel["options"]["legend"]["calcs"], panel["title"]
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters) > 0, panel["title"]


@pytest.mark.parametrize(("name", "board"), BOARDS)
def test_everything_is_asked_of_the_data_source_that_is_chosen(
    name: str, board: dict[str, Any]
) -> None:
    variables = board["templating"]["list"]
    chosen = variables[0]
    assert (chosen["name"], chosen["type"], chosen["query"]) == (
        "datasource",
        "datasource",
        "prometheus",
    )
    assert [one["name"] for one in variables[1:]] == ["job", "instance", "limiter"]
    asking = [*variables[1:], *board["annotations"]["list"], *panels(board)]
    asking += [target for panel in panels(board) for target in panel["targets"]]
    for one in asking:
        assert one["datasource"] == DATASOURCE, (name, one)


@pytest.mark.parametrize(("name", "board"), BOARDS)
def test_variables_that_are_used_are_defined(name: str, board: dict[str, Any]) -> None:
    known = {one["name"] for one in board["templating"]["list"]}
    text = repr({key: value for key, value in board.items() if key != "templating"})
    used = set(re.findall(r"\$\{?(\w+)", text))
    assert {one for one in used if not one.startswith("__")} <= known, name
    assert known <= used, name
    for number, one in enumerate(board["templating"]["list"]):
        before = {other["name"] for other in board["templating"]["list"][:number]}
        assert set(re.findall(r"\$(\w+)", str(one["query"]))) <= before, one["name"]


def test_each_metric_that_is_asked_for_exists_and_has_the_labels_that_are_asked_for() -> None:
    variables = [
        (f"{name}: variable {one['name']}", one["definition"])
        for name, board in BOARDS
        for one in board["templating"]["list"]
        if one["type"] == "query"
    ]
    for where, expression in [*EXPRESSIONS, *variables]:
        asked = set(METRIC.findall(expression))
        assert asked, where
        assert asked <= set(SAMPLES), (where, asked - set(SAMPLES))
        for metric, matchers in SELECTOR.findall(expression):
            assert not MATCHER.sub("", matchers).strip(", "), (where, matchers)
            labels = set(MATCHER.findall(matchers))
            assert labels <= SAMPLES[metric], (where, metric, labels - SAMPLES[metric])
    for where, definition in variables:
        found = re.fullmatch(r"label_values\((aiolimit_\w+)(?:\{.*\})?, (\w+)\)", definition)
        assert found, where
        assert found[2] in SAMPLES[found[1]], where


def test_what_is_grouped_by_are_labels_of_what_is_grouped() -> None:
    for where, expression in EXPRESSIONS:
        text = " ".join(expression.split())
        groupings = list(GROUPING.finditer(text))
        assert len(groupings) == len(re.findall(r"\b(?:by|without)\b", text)), where
        for grouping in groupings:
            for metric in METRIC.findall(enclosed(text, grouping.end())):
                missing = names(grouping[2]) - SAMPLES[metric]
                assert not missing, (where, metric, missing)
        for matching in re.findall(r"\b(?:on|ignoring) \(([^)]*)\)", text):
            for metric in METRIC.findall(text):
                assert names(matching) <= SAMPLES[metric], (where, metric, matching)


def test_each_name_in_a_legend_is_a_label_that_is_left() -> None:
    for name, board in BOARDS:
        for panel in panels(board):
            for target in panel["targets"]:
                expression = target["expr"]
                outermost = GROUPING.search(expression)
                if outermost:
                    left = set().union(
                        *(names(labels) for _, labels in GROUPING.findall(expression))
                    )
                elif re.search(r"\bsum \(", expression):
                    left = set()
                else:
                    left = set().union(*(SAMPLES[one] for one in METRIC.findall(expression)))
                shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                assert shown <= left, (name, panel["title"], shown - left)


def test_each_metric_there_is_is_shown_or_watched() -> None:
    asked = {metric for _, text in EXPRESSIONS for metric in METRIC.findall(text)}
    assert set(SAMPLES) <= asked, set(SAMPLES) - asked


def test_counters_are_shown_as_rates_over_the_interval_that_grafana_works_out() -> None:
    for where, expression in EXPRESSIONS:
        ranges = re.findall(r"\[([^\]]*)\]", expression)
        counters = [one for one in METRIC.findall(expression) if one.endswith("_total")]
        rated = re.findall(r"\b(?:rate|increase)\(\s*aiolimit_\w+", expression)
        if where.startswith("alert "):
            assert all(re.fullmatch(r"\d+[mh]", each) for each in ranges), where
        else:
            assert set(ranges) <= {"$__rate_interval"}, where
        assert len(rated) >= len(counters), where


def test_what_a_test_asks_of_prometheus_has_no_variables_and_no_comparisons() -> None:
    found = expressions("7s", limiter="search|export")
    assert len(found) > len(EXPRESSIONS)  # an alert with `and` asks twice
    for where, text in found:
        assert "$" not in text, where
        assert not re.search(r"[<>]|==", text), where
        if not where.startswith("alert "):
            assert 'job=~".*"' in text, where
    assert any('limiter=~"search|export"' in text for _, text in found)
    assert any("[7s]" in text for _, text in found)


def test_prometheus_can_read_all_expressions(tmp_path: Path) -> None:
    rules = tmp_path / "all.yml"
    lines = ["groups:", "- name: all", "  rules:"]
    for number, (_, text) in enumerate(expressions("5s")):
        quoted = " ".join(text.split()).replace("'", "''")
        lines += [f"  - record: expression:{number}", f"    expr: '{quoted}'"]
    rules.write_text("\n".join(lines))
    checked("check", "rules", str(rules))


def test_prometheus_accepts_the_configuration_and_all_rules() -> None:
    assert "SUCCESS" in checked("check", "config", "prometheus.yml")
    told = checked("check", "rules", str(RULES))
    assert f"{len(alerts())} rules found" in told, "each alert is written in the same form"


def test_the_alerts_go_off_when_they_should_and_not_else() -> None:
    checked("test", "rules", str(RULES.with_name("aiolimit.test.yml")))


def test_each_alert_is_tried_and_tells_what_to_do() -> None:
    rules, tests = RULES.read_text(), RULES.with_name("aiolimit.test.yml").read_text()
    for name, _ in alerts():
        one = re.search(rf"- alert: {name}\n(.*?)(?=\n\n|\Z)", rules, re.DOTALL)
        assert one, name
        for part in ("for: ", "severity: ", "summary: ", "description: ", "action: ", "runbook: "):
            assert part in one[1], (name, part)
        assert re.search(r"severity: (warning|info)\n", one[1]), name
        tried = re.search(rf"- name: {name}\n(.*?)(?=\n  - name: |\Z)", tests, re.DOTALL)
        assert tried, name
        assert "exp_samples: []" in tried[1], f"{name} is never seen to stay calm"
        assert f'ALERTS{{alertname="{name}", alertstate="firing", severity=' in tried[1], name


def test_what_compose_mounts_is_there_and_grafana_finds_it() -> None:
    compose = (FOLDER.parent / "compose.yaml").read_text()
    mounts = dict(re.findall(r"- (\.[\w./-]*):(/[\w./-]+):ro", compose))
    for here in mounts:
        assert (FOLDER.parent / here).exists(), here
    provider = (FOLDER.parent / "provisioning" / "dashboards" / "aiolimit.yaml").read_text()
    assert f"path: {mounts['./dashboards']}\n" in provider
    home = re.search(r"HOME_DASHBOARD_PATH: (\S+)", compose)
    assert home
    assert home[1] == f"{mounts['./dashboards']}/overview.json"
    images = re.findall(r"image: (\S+)", compose)
    assert len(images) == 2
    assert all(re.fullmatch(r"[\w/]+:v?\d+\.\d+\.\d+", image) for image in images), images


def test_grafana_knows_how_often_prometheus_asks() -> None:
    asks = re.search(r"scrape_interval: (\S+)", (FOLDER.parent / "prometheus.yml").read_text())
    source = FOLDER.parent / "provisioning" / "datasources" / "prometheus.yaml"
    told = re.search(r"timeInterval: (\S+)", source.read_text())
    assert asks
    assert told
    assert told[1] == asks[1]
