"""Runs that ended in every way, in a copy of the golden store: real records, changed where a verdict needs it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_contracts.records import Evidence, GateResult
from tests.support.damage import overwrite

PROMOTED, REJECTED = "20261122-185224-819870", "20261122-185249-39338a"
FIRST, CANCELLED = "20261122-185153-d1e8f3", "20261122-185259-50d650"
NOT_PROMOTED, RECOVERED, WAITING = "20261123-100000-aaaaaa", "20261123-110000-bbbbbb", "20261123-120000-cccccc"
RUNS = {
    "promoted": PROMOTED,
    "rejected": REJECTED,
    "not promoted": NOT_PROMOTED,
    "recovered": RECOVERED,
    "waiting": WAITING,
    "cancelled": CANCELLED,
}
TRAINING = "trainings/27ec13a7075eac5065f6e9e1cab7d646609bc60e-0"
SLICES = {"weekend": {"column": "day", "values": [6, 7]}, "week": {"column": "day", "min": 1, "max": 6}}
GATES = [
    {"metric": "accuracy", "min": 0.9},
    {"metric": "accuracy", "min_gain": 0.0, "confidence": 0.95},
    {"metric": "accuracy", "margin": 0.01, "confidence": 0.95, "slice": "weekend"},
    {"metric": "accuracy", "max_gap": 0.05},
]


def evidence(verdict: str, estimate: float, low: float, high: float, needed: int | None = None) -> Evidence:
    """Evidence as a gate with confidence leaves it."""
    return Evidence.model_validate(
        {
            **{"verdict": verdict, "estimate": estimate, "low": low, "high": high, "confidence": 0.95, "p_value": 0.21},
            **{"method": "exact paired counts", "level": 0.013, "comparisons": 12, "promotions": 2, "rows": 59},
            "rows_needed": needed,
        }
    )


def gate_results() -> list[GateResult]:
    """What the `GATES` found: met, insufficient evidence, worse on a slice, and a gap."""
    return [
        GateResult(metric="accuracy", met=True, value=0.97, bound=0.9, sentence="accuracy is 0.9700, at least 0.9"),
        GateResult(
            metric="accuracy",
            met=False,
            value=0.97,
            bound=0.0,
            champion_value=0.95,
            sentence="accuracy gains 0.0200, but 59 rows are too few to decide: about 1,240 would decide",
            evidence=evidence("insufficient", 0.02, -0.015, 0.055, 1240),
            ledger="the 59 test rows have decided 13 comparisons (2 in a candidate's favour), and more are left",
        ),
        GateResult(
            metric="accuracy",
            met=False,
            value=0.88,
            bound=-0.01,
            champion_value=0.95,
            slice="weekend",
            sentence="accuracy on weekend loses 0.0700, more than the 0.01 that is accepted",
            evidence=evidence("worse", -0.07, -0.12, -0.02),
        ),
        GateResult(metric="accuracy", met=True, value=0.03, bound=0.05, sentence="accuracy differs by 0.03 at most"),
    ]


def reported_store(golden: Path, to: Path) -> Path:
    """A copy of the golden store with a run for each of `RUNS`; returns the store."""
    store = Path(shutil.copytree(golden / "store", to / "store"))
    _copy(store, PROMOTED, NOT_PROMOTED, _with_gates)
    _change(store / "runs" / NOT_PROMOTED / "report.json", _refused)
    _copy(store, PROMOTED, RECOVERED, lambda resolved: None)
    _restarted(store)
    _copy(store, CANCELLED, WAITING, lambda resolved: None)
    _change(store / "runs" / WAITING / "attempts/0.json", _waits)
    return store


def _with_gates(resolved: dict[str, Any]) -> None:
    resolved["spec"]["promote"]["gates"] = GATES
    resolved["spec"]["evaluate"]["slices"] = SLICES


def _refused(report: dict[str, Any]) -> None:
    gates = [one.to_json() for one in gate_results()]
    why = "; ".join(one.sentence for one in gate_results() if not one.met)
    missed = f"Not promoted, 2 of 4 gates not met: {why}; tiny@champion stays at version 1."
    report.update(verdict="not_promoted", exit_code=4, sentence=missed, metrics={"accuracy": 0.97})
    report["model"] = {"name": "tiny", "version": 1, "alias": "champion"}
    report["error"] = {
        **{"cause": "gate_not_met", "message": missed, "remedy": "Train a better model.", "user_traceback": ""},
        "details": {"gates": gates},
    }
    report["stages"][-1].update(sentence=missed, id=None)


def _waits(report: dict[str, Any]) -> None:
    sentence = (
        "All 2 gates are met, and a person must approve the candidate as tiny@champion instead of version 1 "
        "before 2026-12-02 12:00 UTC."
    )
    remedy = f"Answer with `trainwright approve {WAITING} --reason WHY`; then `trainwright resume {WAITING}` continues."
    report.update(verdict="waiting", exit_code=9, sentence=f"{sentence} {remedy}", metrics={"accuracy": 0.97})
    details = {"gates": [one.to_json() for one in gate_results() if one.met]}
    told = {"cause": "waiting", "message": sentence, "remedy": remedy, "user_traceback": "", "details": details}
    report["error"] = told


def _copy(store: Path, run: str, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    folder = Path(shutil.copytree(store / "runs" / run, store / "runs" / name))
    for path in [folder / "resolved.json", folder / "report.json", *folder.glob("attempts/*.json")]:
        if path.exists():
            _change(path, lambda record: record.update(run_id=name))
    _change(folder / "resolved.json", change)


def _restarted(store: Path) -> None:
    """The training of `PROMOTED` as if a node had been lost at step 40 and a second generation had done the rest."""
    training = store / TRAINING
    first, second = training / "g0", training / "g1"
    shutil.copytree(first, second)
    ended = json.loads((first / "node-0/exit.json").read_text())
    resumed = ended["ranks"][0]["report"]["checkpoints"][1]

    def next_generation(launch: dict[str, Any]) -> None:
        launch.update(generation=1, resume=resumed)
        launch["provenance"]["run_id"] = RECOVERED

    _change(second / "launch.json", next_generation)
    _change(first / "launch.json", lambda launch: launch["provenance"].update(run_id=RECOVERED))

    def lost(exit_: dict[str, Any]) -> None:
        message = "Node 0 was lost: it reported nothing for 12 s."
        error = {"cause": "node_lost", "message": message, "remedy": "", "user_traceback": "", "details": {}}
        exit_.update(status="failed", error=error)
        exit_["ranks"][0]["report"]["step"] = 40
        exit_["ranks"][0]["done"] = None

    _change(first / "node-0/exit.json", lost)


def _change(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    record = json.loads(path.read_text())
    change(record)
    overwrite(path, json.dumps(record, separators=(",", ":")))
