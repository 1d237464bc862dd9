"""The hand-offs: frozen, exact, and read again from what they wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from data_contracts import handoffs
from data_contracts.alias_moves import ObservationBatch
from data_contracts.approvals import Answer, Protection, Question
from data_contracts.contract.file_statistics import FileStatistics, StatisticsGroup
from data_contracts.costs import MonthCosts
from data_contracts.errors import UsageError
from data_contracts.executions import BackfilledWindow, Crash, Execution, ExecutionUsage, RunNames, ScheduledTime
from data_contracts.handoffs import Dataset, HandOff, Receipt
from data_contracts.messages import Message
from data_contracts.messages.raw_data import ChunkOffsets, ContaminationReport
from data_contracts.records import (
    SCHEMA,
    Delivery,
    ExposureEntry,
    FailureEvent,
    InstalledPackages,
    NodeStanding,
    Profile,
    SensorStep,
    SpentBefore,
)
from data_contracts.resolved import Recipe, Resolved
from data_contracts.rules import BudgetWarning, RulesVersion, SpendingEntry
from data_contracts.run_report import CiReport, RunReport
from data_contracts.searches import SearchEvent, SearchRecord
from tests.support.refusals import refusal

WRITTEN = [handoffs.ContractReport, handoffs.Dataset, handoffs.Checkpoint, handoffs.Evaluation, handoffs.ModelVersion,
           handoffs.Receipt, RunReport, Resolved, ContaminationReport, Profile, FileStatistics, StatisticsGroup,
           ChunkOffsets, Question, Answer, Protection, Recipe, Delivery, ObservationBatch,
           FailureEvent, NodeStanding, Execution, Crash, BackfilledWindow, ScheduledTime, SensorStep, ExecutionUsage,
           RunNames, RulesVersion, SpendingEntry, BudgetWarning, MonthCosts, CiReport, InstalledPackages, SearchRecord,
           SearchEvent]  # fmt: skip


@pytest.fixture(scope="module")
def golden(repository: Path) -> dict[str, Any]:
    """One hand-off of each kind, as version 1 wrote them. A later version must go on reading this file."""
    return json.loads((repository / "tests" / "golden" / "handoffs-v1.json").read_text())


def test_the_golden_file_has_every_kind(golden: dict[str, Any]) -> None:
    assert set(golden) == {kind.__name__ for kind in WRITTEN}
    known = {kind for kind in HandOff.__subclasses__() if kind.__module__.startswith("data_contracts.")}
    # Messages have a golden file each, and the exposure ledger a folder.
    assert known - {Message, ExposureEntry, SpentBefore} == set(WRITTEN)


@pytest.mark.parametrize("kind", WRITTEN)
def test_what_version_1_wrote_is_read_and_written_again(kind: type[HandOff], golden: dict[str, Any]) -> None:
    value = golden[kind.__name__]
    again = kind.from_json(value)
    assert type(again) is kind
    assert again.to_json() == value


@pytest.mark.parametrize("kind", WRITTEN)
@pytest.mark.parametrize("version", [SCHEMA + 1, "2", None])
def test_a_newer_schema_is_refused_in_one_sentence(kind: type[HandOff], version: Any, golden: dict[str, Any]) -> None:
    value = {**golden[kind.__name__], "schema_version": version, "what_it_added": 1}
    assert refusal(UsageError, kind.from_json, value) == (
        f"This {kind.__name__} has schema {version!r}, newer than the {SCHEMA} that this Trainwright reads. "
        "Upgrade Trainwright."
    )


@pytest.mark.parametrize("kind", WRITTEN)
def test_an_unknown_key_is_no_part_of_a_schema(kind: type[HandOff], golden: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        kind.from_json({**golden[kind.__name__], "extra": 1})


def test_a_record_cannot_be_changed(golden: dict[str, Any]) -> None:
    receipt = Receipt.from_json(golden["Receipt"])
    with pytest.raises(ValidationError, match="frozen"):
        receipt.version = 3


def test_rows_of_a_split(golden: dict[str, Any]) -> None:
    dataset = Dataset.from_json(golden["Dataset"])
    assert {split: dataset.rows(split) for split in ("train", "val", "test", "none")} == {
        "train": 1257, "val": 181, "test": 359, "none": 0,
    }  # fmt: skip


def test_a_resolved_run_gives_its_spec_back_as_it_was(golden: dict[str, Any], repository: Path) -> None:
    resolved = Resolved.from_json(golden["Resolved"])
    assert resolved.pipeline().model_dump(mode="json") == golden["Resolved"]["spec"]
