"""A run's inputs are written once, and are those of that run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from data_contracts.errors import CorruptError
from data_contracts.resolved import Resolved
from infra.signing.signatures import refuse_unsigned_inputs
from infra.store import Store, layout, open_store
from tasks.mirrors import deliver
from tasks.run.resolve import find_inputs, read_inputs, resolved_runs
from tasks.run.run import record_inputs
from tests.support.counted import away
from tests.support.raced import Memory
from tests.support.signed import pair


@pytest.fixture
def store() -> Store:
    return Store(Memory(), {})


@pytest.fixture
def resolved(repository: Path) -> Resolved:
    golden = json.loads((repository / "tests" / "golden" / "handoffs-v1.json").read_text())["Resolved"]
    return Resolved.from_json({**golden, "run_id": "r1"})


def test_what_a_process_resolved_is_signed_and_what_it_found_is_not(
    store: Store, resolved: Resolved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "claim", lambda *_: True, raising=False)
    key = pair(tmp_path)[0]
    assert record_inputs(store, resolved, key) == resolved
    refuse_unsigned_inputs(store, resolved, key)
    other = resolved.model_copy(update={"run_id": "r2"})
    assert record_inputs(store, other, None) == other
    assert record_inputs(store, other.model_copy(update={"started": "2026-11-25T10:00:00+00:00"}), key) == other
    assert not store.exists(layout.inputs_signature("r2")), "a process signs only what it resolved itself"


@pytest.mark.parametrize(
    "read",
    [
        lambda store: read_inputs(store, "r2"),
        lambda store: find_inputs(store, "r2"),
        lambda store: list(resolved_runs(store, "digits")),
    ],
)
def test_signed_inputs_of_another_run_are_not_this_runs(
    read: Callable[[Store], object], store: Store, resolved: Resolved
) -> None:
    store.create_json(layout.resolved("r2"), resolved.to_json())
    store.create_json(layout.pipeline("digits"), {"name": "digits"})
    with pytest.raises(CorruptError, match=r"runs/r2/resolved\.json .* these are the inputs of the run 'r1'"):
        read(store)


@pytest.mark.parametrize("runs", [3, 30])
def test_a_pipelines_newest_run_is_found_without_reading_all(runs: int, resolved: Resolved, tmp_path: Path) -> None:
    folder = open_store(str(tmp_path / "store"))
    store, backend = away(folder)
    for number in range(runs):
        run_id = f"r{number:02}"
        folder.create_json(layout.resolved(run_id), {**resolved.to_json(), "run_id": run_id})
    assert list(resolved_runs(store, "digits")) == []
    assert (backend.alone, backend.together) == (1, 0), "a pipeline without a record has no runs"
    folder.create_json(layout.pipeline("digits"), {"name": "digits"})
    assert next(resolved_runs(store, "digits")).run_id == f"r{runs - 1:02}"
    assert (backend.alone, backend.together) == (3, 1)
    assert [one.run_id for one in resolved_runs(store, "digits")] == [f"r{n:02}" for n in reversed(range(runs))]
    assert (backend.alone, backend.together) == (5, 1 + runs)


def test_no_mirror_is_told_of_a_run_with_the_inputs_of_another(store: Store, resolved: Resolved) -> None:
    store.create_json(layout.resolved("r1"), resolved.to_json())
    assert deliver._resolved(store, "r1") == resolved
    store.create_json(layout.resolved("r2"), resolved.to_json())
    assert deliver._resolved(store, "r2") is None
