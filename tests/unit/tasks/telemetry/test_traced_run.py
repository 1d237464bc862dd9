"""A run as a trace: what is below what, that children get their place in it, and that no sentence is in it."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from data_contracts.executions import GangUsage, NodeUsage
from data_contracts.messages.gang import Heartbeat, Launch, RankMeasures, RankReport
from data_contracts.run_report import StageResult
from infra.gang.ranks import origin_env
from infra.telemetry import TRACEPARENT, Context, current, new_context
from tasks.run.progress import GangLaunched, GangReleased, NodeHeard, StageBegan, StageEnded
from tasks.telemetry import TracedRun
from tests.support.runs import make_run


class Kept:
    """Keeps spans instead of sending them."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []

    def root(self, name: str, parent: Context | None) -> Context:
        return new_context() if parent is None else parent.child(name)

    def ended(self, name: str, context: Context, parent: Any, times: Any, attributes: Any, **more: Any) -> None:
        known = {"name": name, "context": context, "parent": parent, "times": times, "attributes": attributes}
        self.spans.append({**known, **more})

    def of(self, name: str) -> dict[str, Any]:
        [one] = [span for span in self.spans if span["name"] == name]
        return one


@pytest.fixture
def kept() -> Kept:
    return Kept()


def traced(kept: Kept) -> TracedRun:
    return TracedRun(make_run(), cast(Any, kept))


def ended(name: str, status: Any) -> StageEnded:
    return StageEnded(StageResult(name=name, status=status, seconds=1.0, sentence="Alice is 42"))


def report(**changes: Any) -> Any:
    return SimpleNamespace(**{"verdict": "promoted", "error": None, **changes})


def test_a_run_has_stages_nodes_and_ranks_below_each_other(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TRACEPARENT, raising=False)
    trace = traced(kept)
    trace(StageBegan("train", "tiny", "r1"))
    launch = Launch(training="trainings/k-0", generation=3, nodes=2, devices=1, traceparent=str(current()))
    trace(GangLaunched(launch, lambda: None))  # type: ignore[arg-type, return-value]
    for _ in range(2):
        trace(NodeHeard(1, Heartbeat(ranks=[RankReport(rank=2, step=7, measured=RankMeasures())])))
    node = NodeUsage(number=1, started=10.0, released=30.0)
    trace(GangReleased(GangUsage(stage="", where="x", generation=3, local=True, nodes=[node], ended="hung")))
    trace(ended("train", "failed"))
    trace.end(report())
    run, train, one, rank = (kept.of(name) for name in ("RUN tiny", "train", "node 1", "rank 2"))
    assert (run["parent"], train["parent"], one["parent"], rank["parent"]) == (
        None, run["context"], train["context"], one["context"],
    )  # fmt: skip
    assert (one["times"], one["error"], train["error"], run["error"]) == ((10.0, 30.0), "hung", "failed", "")
    assert origin_env(launch, 1) == {TRACEPARENT: str(one["context"])}
    assert "Alice" not in repr(kept.spans)


def test_children_get_the_stage_that_they_work_for(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    given = new_context()
    monkeypatch.setenv(TRACEPARENT, str(given))
    trace = traced(kept)
    trace(StageBegan("shard", "tiny", "r1"))
    in_stage = current()
    trace(ended("shard", "ran"))
    between = current()
    trace.end(report())
    assert (kept.of("shard")["context"], kept.of("RUN tiny")["context"]) == (in_stage, between)
    assert kept.of("RUN tiny")["parent"] == given
    assert os.environ[TRACEPARENT] == str(given)


@pytest.mark.parametrize(
    ("ends", "result", "error"),
    [
        (report(), "success", ""),
        (report(verdict="not_promoted"), "failure", ""),
        (report(verdict="cancelled"), "cancellation", ""),
        (report(verdict="failed", error={"cause": "hung"}), "error", "hung"),
        (report(verdict="failed", error={"cause": "Alice"}), "error", "internal"),
        (None, "error", "internal"),
    ],
)
def test_the_runs_end_is_one_of_the_conventions_results(ends: Any, result: str, error: str, kept: Kept) -> None:
    traced(kept).end(ends)
    run = kept.of("RUN tiny")
    assert (run["attributes"]["cicd.pipeline.result"], run["error"], run["server"]) == (result, error, True)


def test_outside_of_a_trace_nodes_get_none() -> None:
    assert origin_env(Launch(training="trainings/k-0", nodes=1, devices=1), 0) == {}
