"""Dashboards and alert rules: their metrics exist, each rule fires and is silent as it should, each has a runbook."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.telemetry.catalogue import METRICS

ROOT = Path(__file__).resolve().parents[4]
ALERTS = ROOT / "infra" / "alerts"
BOARDS = sorted((ROOT / "infra" / "dashboards").glob("*.json"))
RULES: list[dict[str, Any]] = yaml.safe_load((ALERTS / "trainwright.yml").read_text())["groups"][0]["rules"]
SUFFIXES = {"histogram": ("_bucket", "_count", "_sum"), "summary": ("_count", "_sum")}
NAMES = {
    f"{one.name}{suffix}": {*one.labels, "pipeline", "instance", "le"}
    for one in METRICS
    for suffix in SUFFIXES.get(one.kind, ("",))
}
_SELECTOR = re.compile(r"(trainwright_[a-z_]+)(?:\{([^}]*)\})?")


def board(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def queries(path: Path) -> Iterator[str]:
    for panel in board(path)["panels"]:
        yield from (target["expr"] for target in panel["targets"])


def refuse(query: str) -> None:
    """Fail for a metric or a label that nothing shows."""
    for name, matchers in _SELECTOR.findall(query):
        assert name in NAMES, query
        labels = set(re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", matchers))
        assert labels <= NAMES[name], query


def test_the_metrics_of_every_query_exist() -> None:
    for query in [*(rule["expr"] for rule in RULES), *itertools.chain.from_iterable(map(queries, BOARDS))]:
        refuse(query)
    with pytest.raises(AssertionError):
        refuse("rate(trainwright_steps_total[5m])")
    with pytest.raises(AssertionError):
        refuse('trainwright_loss{rank="0"}')


@pytest.mark.apt("prometheus")
def test_promtool_parses_every_query_and_every_rule_fires_when_it_should(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": query.replace("$pipeline", ".*").replace("$instance", ".*")}
        for number, query in enumerate(itertools.chain.from_iterable(map(queries, BOARDS)))
    ]
    panels = tmp_path / "panels.yml"
    panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    for words in (
        ("check", "rules", str(ALERTS / "trainwright.yml"), str(panels)),
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


def test_there_are_four_dashboards() -> None:
    assert [path.stem for path in BOARDS] == ["money", "overview", "pool", "run"]
