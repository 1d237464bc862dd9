"""Promotion on evidence through the command line: the ledger, the three verdicts, a sealed set that tells no score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny import SPEC, answer, trainwright, write_project, write_rows

pytestmark = pytest.mark.warm

GATES = [
    {"metric": "accuracy", "min": 0.6, "confidence": 0.95},
    {"metric": "accuracy", "margin": 0.25, "confidence": 0.95},
    {"metric": "accuracy", "slice": "high", "margin": 0.4, "confidence": 0.95},
    {"metric": "judge/accuracy", "margin": 0.2, "confidence": 0.95},
]
WORSE = "train.lightning.model.init_args.lr=0.0000001"
OTHER = "train.seed=8"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose first run has promoted version 1: its value was shown, and there was nothing to compare with."""
    evaluate = {
        **SPEC["evaluate"],
        "sets": {"judge": {"source": "judge.csv", "sealed": True}},
        "slices": {"high": {"column": "a", "min": 0}, "low": {"where": "a < 0"}},
    }
    spec = write_project(
        tmp_path_factory.mktemp("tiny"),
        {"evaluate": evaluate, "promote": {"gates": GATES}, "shards": {**SPEC["shards"]}},
    )
    write_rows(spec.parent / "rows.csv", rows=3_000)
    write_rows(spec.parent / "judge.csv", rows=300, seed=5)
    done = trainwright("run", spec, "--json")
    assert done.returncode == 0, done.stderr
    assert answer(done)["verdict"] == "promoted", done.stderr
    return spec.parent


def run(project: Path, *settings: str) -> tuple[int, dict[str, Any], str]:
    done = trainwright("run", project / "pipeline.yaml", *(f"--set={one}" for one in settings), "--json")
    return done.returncode, answer(done), done.stdout + done.stderr


def entries(project: Path) -> list[str]:
    return sorted(str(path.relative_to(project)) for path in (project / ".trainwright/exposures").rglob("[0-9].json"))


def planned(project: Path, *settings: str) -> str:
    arguments = [f"--set={one}" for one in settings]
    stages = answer(trainwright("plan", project / "pipeline.yaml", *arguments, "--no-estimate", "--json"))["stages"]
    return str(next(step["why"] for step in stages if step["name"] == "promote"))


def test_the_first_comparison_is_of_the_value_alone(project: Path) -> None:
    # The test rows have shown that the accuracy is above 0.6; the sealed rows were asked nothing.
    assert len(entries(project)) == 1
    assert "have decided 1 comparison (1 in a candidate's favour)" in planned(project, OTHER)


def test_a_worse_model_is_not_promoted_and_each_gate_says_why(project: Path) -> None:
    before = len(entries(project))
    for _ in range(2):  # a repeated run spends nothing
        code, report, said = run(project, WORSE)
        assert (code, report["verdict"]) == (4, "not_promoted")
        assert "worse than asked for" in report["sentence"]
        assert "95 % interval" in report["sentence"]
        assert len(entries(project)) == before + 3, "all rows, the slice, and the sealed set"
        gates = report["error"]["details"]["gates"]
        assert [gate["met"] for gate in gates][1:] == [False, False, False]
        assert (
            gates[3]["sentence"] == "judge/accuracy: the sealed set's 300 rows do not show that it loses less than 0.2"
        )
        assert "evidence" not in gates[3]
        assert "judge/accuracy is" not in said
    assert "set judge: the 300 test rows have decided 1 comparison:" in planned(project, OTHER)


def test_a_model_that_is_shown_not_to_be_worse_is_promoted(project: Path) -> None:
    code, report, _ = run(project, OTHER)
    assert (code, report["verdict"]) == (0, "promoted"), report["sentence"]
    receipt = project / ".trainwright/aliases/tiny/history/champion/1/receipt.json"
    gates = json.loads(receipt.read_text())["gates"]
    assert [gate.get("evidence", {}).get("verdict") for gate in gates] == ["better", "better", "better", None]
    assert gates[1]["evidence"]["comparisons"] == 2
    assert gates[2]["slice"] == "high"
    assert gates[3]["sealed"] is True


def test_too_little_evidence_keeps_the_champion_unless_the_spec_says_otherwise(project: Path) -> None:
    asked = 'promote.gates=[{"metric": "accuracy", "min_gain": 0, "confidence": 0.99}]'
    code, report, _ = run(project, "train.seed=9", asked)
    assert (code, report["verdict"]) == (4, "not_promoted")
    assert "insufficient evidence of a gain above 0" in report["sentence"]
    code, report, _ = run(project, "train.seed=9", asked, "promote.when_insufficient=promote")
    assert (code, report["verdict"]) == (0, "promoted")
    assert "promoted although the evidence is insufficient" in report["sentence"]


def test_no_score_of_the_sealed_set_is_shown(project: Path) -> None:
    store = project / ".trainwright"
    for path in store.rglob("*.html"):
        assert "judge/accuracy is" not in path.read_text(), path
    hidden = [json.loads(path.read_text())["metrics"] for path in store.rglob("sealed.json")]
    assert len(hidden) >= 3
    for metrics in hidden:
        value = str(metrics["judge/accuracy"]["value"])
        for path in [*store.rglob("report.json"), *store.rglob("receipt.json"), *store.rglob("*.html")]:
            assert f'"judge/accuracy": {value}' not in path.read_text(), path
