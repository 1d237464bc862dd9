"""The report of a run: how each stage ended, the verdict and the cost."""

from __future__ import annotations

from typing import Any, Literal

from data_contracts.handoffs import HandOff, Record

StageStatus = Literal["ran", "reused", "rejected", "failed", "skipped", "cancelled", "waiting"]
Verdict = Literal["promoted", "unchanged", "not_promoted", "rejected", "failed", "cancelled", "waiting", "over_budget"]
Trigger = Literal["cli", "schedule", "ci", "ui", "automation"]


class Cost(Record):
    """A run's cost: node-seconds from launch to release times the catalogue's dated price."""

    node_seconds: float = 0.0
    usd: float = 0.0
    machine: str = "local"
    usd_per_hour: float = 0.0
    price_date: str = ""


class StageResult(Record):
    """How one stage ended. `id` is the id of the result that it made or reused; `reused_from` says what was reused."""

    name: str
    status: StageStatus
    seconds: float
    id: str | None = None
    reused_from: str | None = None
    sentence: str = ""


class ModelName(Record):
    """A model as a report names it."""

    name: str
    version: int | None
    alias: str | None


class RunReport(HandOff):
    """One page about one run; `trainwright run --json` prints it.

    Attributes:
        error: the error that ended it, as `TrainwrightError.to_json` writes it; None if the line reached its end.
    """

    run_id: str
    pipeline: str
    verdict: Verdict
    exit_code: int
    sentence: str
    stages: list[StageResult]
    error: dict[str, Any] | None = None
    dataset_id: str | None = None
    checkpoint_id: str | None = None
    model: ModelName | None = None
    metrics: dict[str, float] = {}
    cost: Cost = Cost()
    tags: dict[str, str] = {}
    trigger: Trigger = "cli"
    actor: str = ""
    commit: str | None = None
    dirty: bool = False
    started: str = ""
    finished: str = ""
