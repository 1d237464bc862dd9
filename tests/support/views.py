"""What dashboards and alert rules ask Prometheus, as Grafana and Prometheus put their questions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "infra" / "alerts"
RULES_FILE = ALERTS / "trainwright.yml"
BOARDS = sorted((ROOT / "infra" / "dashboards").glob("*.json"))
_COMPARISON = re.compile(r"\s(?:==|!=|>=|<=|>|<)\s*[\d.]+\s*$")
_VARIABLE = re.compile(r"label_values\((.+), *(\w+)\)")


@dataclass(frozen=True)
class Question:
    """An expression and where it stands; `legend`: the labels that its legend names."""

    place: str
    expr: str
    legend: tuple[str, ...] = ()


def rules() -> list[dict[str, Any]]:
    """The alerting rules."""
    return [rule for group in yaml.safe_load(RULES_FILE.read_text())["groups"] for rule in group["rules"]]


def board(path: Path) -> dict[str, Any]:
    """A dashboard."""
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def panel_questions(path: Path) -> Iterator[Question]:
    """The queries of a dashboard's panels, with its variables in them."""
    for panel in board(path)["panels"]:
        for target in panel["targets"]:
            legend = tuple(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            yield Question(f"{path.stem}: {panel['title']} {target['refId']}", target["expr"], legend)


def variables(path: Path) -> Iterator[tuple[str, str, str]]:
    """The name of each variable that asks for the values of a label, with the series and the label."""
    for variable in board(path)["templating"]["list"]:
        if variable["type"] == "query":
            asked = _VARIABLE.fullmatch(variable["query"]["query"])
            assert asked is not None, f"{path.stem}: {variable['query']}"
            yield variable["name"], asked[1], asked[2]


def filled(expr: str, values: Mapping[str, str]) -> str:
    """An expression with the values of the dashboard's variables."""
    for name, value in values.items():
        expr = expr.replace(f"${name}", value)
    assert "$" not in expr, expr
    return expr


def operands(rule: Mapping[str, Any]) -> Iterator[Question]:
    """What a rule looks at: each side of its `and` without its comparison, and as of now."""
    for part in re.split(r"\s+and on \([^)]*\)\s+", rule["expr"].strip()):
        yield Question(rule["alert"], re.sub(r" offset \w+", "", _COMPARISON.sub("", part)))
