"""Dashboards and alert rules: their metrics exist, each rule fires and is silent as it should, each has a runbook."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.metrics import METRICS, SERVER_METRICS, Metric
from tests.support.views import (
    ALERTS,
    BOARDS,
    ROOT,
    RULES_FILE,
    board,
    filled,
    operands,
    panel_questions,
    rules,
    variables,
)

RULES = rules()
SUFFIXES = {"histogram": ("_bucket", "_count", "_sum"), "summary": ("_count", "_sum")}
NAMES: dict[str, Metric] = {
    f"{metric.name}{suffix}": metric
    for metric in (*METRICS, *SERVER_METRICS)
    for suffix in SUFFIXES.get(metric.kind, ("",))
}
# Labels of all series; Prometheus adds the instance.
ADDED = {"pipeline", "pool", "queue", "instance"}
SELECTOR = re.compile(r"(trainwright_[a-z_]+)(?:\{([^}]*)\})?(\[\w+\])?")
# Each query, and each series that a variable's values come from, by its place.
QUERIES = {question.place: question.expr for path in BOARDS for question in panel_questions(path)} | {
    f"{path.stem}: ${name}": series for path in BOARDS for name, series, _ in variables(path)
} | {rule["alert"]: rule["expr"] for rule in RULES}  # fmt: skip


def labels_of(name: str) -> set[str]:
    return {*NAMES[name].labels, *ADDED, *(("le",) if name.endswith("_bucket") else ())}


def refuse(query: str) -> None:
    """Fail for a metric or a label that nothing shows, and for a function of the wrong kind of metric."""
    known: set[str] = set()
    for name, matchers, _ in SELECTOR.findall(query):
        assert name in NAMES, query
        assert set(re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", matchers)) <= labels_of(name), query
        known |= labels_of(name)
    for function, rest in re.findall(r"\b(rate|irate|increase|changes|delta|deriv)\((.*)", query):
        # Of a series, or of what a subquery makes of one.
        metric = NAMES[SELECTOR.match(re.sub(r"^max by \(\w+\) \(", "", rest))[1]]  # type: ignore[index]
        assert (metric.kind == "gauge") == (function in ("changes", "delta", "deriv")), query
    for rest in re.findall(r"histogram_quantile\((.*)", query):
        assert re.match(r"[\d.]+, sum by \((\w+, )*le\) \(rate\(\w+_bucket\b", rest), query
    for listed in re.findall(r"(?:by|on|ignoring|group_left) \(([^)]*)\)", query):
        assert set(re.findall(r"\w+", listed)) <= known, query


@pytest.mark.parametrize("place", QUERIES)
def test_the_metrics_of_a_query_exist_and_are_of_the_kind_that_it_needs(place: str) -> None:
    refuse(QUERIES[place])


@pytest.mark.parametrize(
    "query",
    [
        "rate(trainwright_steps_total[5m])",
        'trainwright_loss{rank="0"}',
        "rate(trainwright_loss[5m])",
        "changes(trainwright_restarts_total[5m])",
        "histogram_quantile(0.5, sum by (le) (rate(trainwright_step_duration_seconds_count[5m])))",
        "histogram_quantile(0.5, sum by (pipeline) (rate(trainwright_step_duration_seconds_bucket[5m])))",
        "sum by (rank) (trainwright_loss)",
        "sum by (le) (rate(trainwright_step_duration_seconds_count[5m]))",
    ],
)
def test_a_query_that_would_have_no_data_is_refused(query: str) -> None:
    with pytest.raises(AssertionError):
        refuse(query)


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_legend_and_a_variable_name_labels_that_their_series_have(path: Path) -> None:
    for question in panel_questions(path):
        left = re.match(r"(?:sum|avg|max|min|count) by \(([^)]*)\)", question.expr)
        names = [name for name, _, _ in SELECTOR.findall(question.expr)]
        kept = set(re.findall(r"\w+", left[1])) if left else set.intersection(*map(labels_of, names))
        assert set(question.legend) <= kept, question.place
    for name, series, label in variables(path):
        assert label in labels_of(SELECTOR.match(series)[1]), name  # type: ignore[index]


def test_each_side_of_a_rule_can_be_asked_alone() -> None:
    found = [question.expr for question in operands(RULES[0])]
    assert found[0] == "changes(trainwright_step[15m])"
    assert found[-1] == "trainwright_step"
    assert all("\n" not in side or "/" in side for side in found)


@pytest.mark.apt("prometheus")
def test_promtool_parses_every_query_and_every_rule_fires_when_it_should(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": filled(question.expr, {"pipeline": ".*", "pool": ".*", "instance": ".*"})}
        for number, question in enumerate(question for path in BOARDS for question in panel_questions(path))
    ]
    panels = tmp_path / "panels.yml"
    panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    for words in (
        ("check", "rules", str(RULES_FILE), str(panels)),
        ("test", "rules", str(ALERTS / "trainwright.test.yml")),
    ):
        done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_says_how_urgent_it_is_and_what_to_do_and_has_cases(rule: dict[str, Any]) -> None:
    name = rule["alert"]
    assert rule["labels"] in ({"severity": "page"}, {"severity": "ticket"})
    assert rule["annotations"]["runbook"] == f"docs/runbooks.md#{name.lower()}"
    section = (ROOT / "docs" / "runbooks.md").read_text().partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    for part in ("Symptom", "Meaning", "Commands", "Cost of waiting"):
        assert f"- **{part}**: " in section
    assert f"Severity: {rule['labels']['severity']}." in section
    cases = yaml.safe_load((ALERTS / "trainwright.test.yml").read_text())["tests"]
    asked = [one for case in cases for one in case["alert_rule_test"] if one["alertname"] == name]
    assert {bool(one["exp_alerts"]) for one in asked} == {True, False}


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_dashboard_can_be_imported_as_it_is(path: Path) -> None:
    value = board(path)
    assert value["uid"] == f"trainwright-{path.stem}"
    assert [one["name"] for one in value["templating"]["list"]][:2] == ["datasource", "pipeline"]
    panels = value["panels"]
    assert len({one["id"] for one in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
        assert {one["datasource"]["uid"] for one in [panel, *panel["targets"]]} == {"${datasource}"}
        assert all("$pipeline" in target["expr"] for target in panel["targets"])


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_dashboard_has_what_grafanas_schema_requires_of_it(path: Path) -> None:
    """The keys that `@grafana/schema` requires and an editor may forget; docs/log/2026-11-26.md has the whole check."""
    value = board(path)
    for link in value["links"]:
        assert {"asDropdown", "icon", "includeVars", "keepTime", "tags", "targetBlank", "title", "tooltip", "type"} < {
            *link
        }
    for variable in value["templating"]["list"]:
        assert "current" not in variable or {"text", "value"} <= {*variable["current"]}
    for panel in value["panels"]:
        assert panel["type"] in ("stat", "timeseries")
        needed = {"legend", "tooltip"} if panel["type"] == "timeseries" else {"reduceOptions"}
        assert {*panel["options"]} == needed
        assert "legend" not in needed or {"calcs", "displayMode", "placement", "showLegend"} <= {
            *panel["options"]["legend"]
        }
        assert panel["fieldConfig"]["overrides"] == []
