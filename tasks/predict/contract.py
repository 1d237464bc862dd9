"""The contract on the rows that a model is asked about: its own suite, without the label's expectations, or another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from data_contracts.contract.reports import sentence
from data_contracts.contract.suites import load_suite, own_classes
from data_contracts.errors import ContractRejected, UsageError
from data_contracts.handoffs import ContractReport, SourceFile
from data_contracts.messages.raw_data import CONTRACT, OWN_CONTRACT, ContractRequest
from data_contracts.pipeline_spec import SourceSpec
from data_contracts.pipeline_spec.data import MEMORY_SHARE
from infra.child import run_child
from tasks.predict.model import Model
from tasks.stages.validate import rejection

OWN = "the model's own suite"


def suite_of(model: Model, named: str) -> tuple[dict[str, Any], str]:
    """The suite and what it fails on; "" names the model's own. UsageError if it has none."""
    if named:
        return load_suite(named, Path.cwd()), "critical"
    if model.contract is None:
        raise UsageError("The model has no contract of its own.", remedy="Name a suite: --contract SUITE.json.")
    return dict(model.contract.settings["suite"]), str(model.contract.settings["fail_on"])


def without(suite: dict[str, Any], columns: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The suite without expectations that name one of these columns, and these expectations in words."""
    kept: list[dict[str, Any]] = []
    left: list[dict[str, Any]] = []
    for one in suite["expectations"]:
        (left if any(_names(one["kwargs"], name) for name in columns) else kept).append(one)
    return {**suite, "expectations": kept}, [sentence(one) for one in left]


def _names(kwargs: Any, column: str) -> bool:
    """Whether arguments have a column's name as a value, or in a condition on rows."""
    if isinstance(kwargs, dict):
        return any(
            _names(value, column) or (key == "row_condition" and column in json.dumps(value))
            for key, value in kwargs.items()
        )
    if isinstance(kwargs, list):
        return any(_names(value, column) for value in kwargs)
    return bool(kwargs == column)


def check_input(
    model: Model, suite: dict[str, Any], fail_on: str, files: list[SourceFile], sources: list[SourceSpec], project: Path
) -> int:
    """Check the rows; returns how many expectations were checked. ContractRejected if the rows break the contract."""
    if not suite["expectations"]:
        return 0
    request = ContractRequest(
        suite=suite,
        files=files,
        sources=sources,
        root=str(Path.cwd()),
        window=None,
        window_column=None,
        fail_on=fail_on,
        sensitive=model.sensitive,
        may_lack_sensitive=True,
        profile=False,
    )
    child, here = CONTRACT, None
    if own_classes(suite):
        child, here, request = OWN_CONTRACT, project, request.model_copy(update={"project": str(project)})
    withhold = bool(model.sensitive)
    outcome = run_child(child, request, project=here, withhold=withhold, memory_share=MEMORY_SHARE)
    if not outcome.accepted:
        found = outcome.model_dump(mode="json", exclude={"schema_version", "profile"})
        report = ContractReport.from_json({**found, "key": "", "suite_digest": ""})
        raise ContractRejected(
            rejection(report, fail_on), details={"failures": [one.to_json() for one in report.failures]}
        )
    return outcome.expectations
