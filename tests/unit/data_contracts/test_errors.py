"""Exit codes and retry keys as the design's table has them, and the way of an error from a child to its parent."""

from __future__ import annotations

import json

import pytest

from data_contracts import errors
from data_contracts.errors import TrainwrightError, from_json

# (class, cause, exit code, key in `retry`): the table of the design.
TABLE = [
    (errors.TrainwrightError, "internal", 1, None),
    (errors.UsageError, "usage", 2, None),
    (errors.SpecError, "spec", 2, None),
    (errors.ContractRejected, "contract_rejected", 3, None),
    (errors.PromiseBroken, "promise_broken", 3, None),
    (errors.GateNotMet, "gate_not_met", 4, None),
    (errors.InsufficientEvidence, "insufficient_evidence", 4, None),
    (errors.OnHold, "on_hold", 4, None),
    (errors.ApprovalRefused, "approval_refused", 4, None),
    (errors.ObjectiveMissed, "objective_missed", 4, None),
    (errors.Interrupted, "interrupted", 5, None),
    (errors.Preempted, "preempted", 5, "preempted"),
    (errors.NodeLost, "node_lost", 5, "node_lost"),
    (errors.Hung, "hung", 5, "hung"),
    (errors.StorageUnavailable, "storage", 5, "storage"),
    (errors.GangIncomplete, "gang_incomplete", 5, "admission"),
    (errors.Crashed, "crashed", 5, "crashed"),
    (errors.Fenced, "fenced", 5, None),
    (errors.CorruptError, "corrupt", 6, None),
    (errors.OverBudget, "over_budget", 7, None),
    (errors.UserCodeError, "user_code", 8, None),
    (errors.OutOfMemory, "out_of_memory", 8, "oom"),
    (errors.Diverged, "diverged", 8, "diverged"),
    (errors.ApprovalPending, "waiting", 9, None),
    (errors.Cancelled, "cancelled", 130, None),
]


def _classes(root: type[TrainwrightError]) -> list[type[TrainwrightError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in _classes(child))]


def test_the_table_is_whole() -> None:
    ours = [kind for kind in _classes(TrainwrightError) if kind.__module__ == errors.__name__]
    assert {kind for kind, *_ in TABLE} == set(ours)
    causes = [cause for _, cause, *_ in TABLE]
    assert len(causes) == len(set(causes))


@pytest.mark.parametrize(("kind", "cause", "exit_code", "retry_key"), TABLE)
def test_a_row_of_the_table(kind: type[TrainwrightError], cause: str, exit_code: int, retry_key: str | None) -> None:
    assert (kind.cause, kind.exit_code, kind.retry_key) == (cause, exit_code, retry_key)
    # The tree that opens the module is what people read.
    tree = (errors.__doc__ or "").splitlines()
    row = next(line for line in tree if kind.__name__ in line.split())
    assert str(exit_code) in row.split()
    assert retry_key is None or f"`{retry_key}`" in row


@pytest.mark.parametrize("kind", [kind for kind, *_ in TABLE])
def test_an_error_crosses_a_process_as_itself(kind: type[TrainwrightError]) -> None:
    error = kind("It broke.", remedy="Mend it.", user_traceback="Traceback: x", details={"rows": 3})
    again = from_json(json.loads(json.dumps(error.to_json())))
    assert type(again) is kind
    assert (again.message, again.remedy, again.user_traceback, again.details) == (
        "It broke.", "Mend it.", "Traceback: x", {"rows": 3},
    )  # fmt: skip
    assert str(again) == "It broke. Mend it."


def test_a_narrower_class_elsewhere_does_not_take_its_parents_place() -> None:
    class TornError(errors.CorruptError):
        """A file that ends too soon, with the cause of its parent."""

    assert type(from_json(TornError("It broke.").to_json())) is errors.CorruptError


@pytest.mark.parametrize("kind", [kind for kind, *_ in TABLE])
def test_the_remedy_is_the_classs_own_unless_given(kind: type[TrainwrightError]) -> None:
    assert kind("It broke.").remedy == kind.default_remedy
    assert str(kind("It broke.", remedy="")) == "It broke."
    again = from_json(kind("It broke.", remedy="").to_json())
    assert again.remedy == ""


@pytest.mark.parametrize("answer", [{}, {"cause": "from a newer version", "message": "It broke."}])
def test_an_answer_that_we_do_not_know_is_an_internal_error(answer: dict[str, str]) -> None:
    error = from_json(answer)
    assert type(error) is TrainwrightError
    assert error.message == answer.get("message", "A child process failed and gave no reason.")
