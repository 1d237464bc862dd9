"""Which rows of a set are fresh: by their values, each once, without what was tallied or seen."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from data_contracts.alias_moves import ObservationBatch
from data_contracts.errors import InsufficientEvidence
from data_contracts.handoffs import Dataset
from infra.models import canaries
from tasks.run.run import Run
from tasks.stages import canary_observations
from tasks.stages.canary_observations import SetDigests, refuse_other_columns
from tests.support.sealed_rows import sealed
from tests.support.standing_canary import CanaryPlace
from tests.support.tiny import SPEC
from tests.unit.tasks.gates.test_set_rows import run_of

TABLE = pa.table({"x": [1.0, 2.0, 3.0, 3.0, 4.0], "customer": ["a", "a", "b", "b", None]})


def rows_of(run: Run, dataset: Dataset) -> SetDigests:
    return SetDigests(run, dataset, "test")


@pytest.fixture
def canary(run: Run, monkeypatch: pytest.MonkeyPatch) -> canaries.Canary:
    with monkeypatch.context() as patch:
        return CanaryPlace(patch, run.store).stands()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return run_of(tmp_path, monkeypatch)


def night(canary: canaries.Canary, run: Run, digests: Any) -> ObservationBatch:
    rows_id = canaries.put_rows(run.store, canary, digests)
    return ObservationBatch(run_id="r", at="", rows=0, rows_id=rows_id, accumulator={}, evaluations=("", ""))


def test_an_equal_row_counts_once_and_a_tallied_row_never_again(
    run: Run, canary: canaries.Canary, tmp_path: Path
) -> None:
    first = rows_of(run, sealed(tmp_path, "one", {"test": TABLE.slice(0, 3)})).fresh(canary, [])
    assert first.mask.tolist() == [True] * 3
    later = rows_of(run, sealed(tmp_path, "two", {"test": TABLE}))
    assert later.fresh(canary, [night(canary, run, first.digests)]).mask.tolist() == [False] * 4 + [True]
    reordered = rows_of(run, sealed(tmp_path, "three", {"test": TABLE.select(["customer", "x"]).take([4, 3, 2])}))
    assert reordered.fresh(canary, [night(canary, run, first.digests)]).mask.tolist() == [True, False, False]


def test_a_customer_who_was_tallied_is_left_out_with_new_rows(
    run: Run, canary: canaries.Canary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, monkeypatch, store=run.store, evaluate={**SPEC["evaluate"], "unit": "customer"})
    first = rows_of(run, sealed(tmp_path, "one", {"test": TABLE.slice(0, 1)})).fresh(canary, [])
    later = rows_of(run, sealed(tmp_path, "two", {"test": TABLE}))
    found = later.fresh(canary, [night(canary, run, first.digests)])
    assert found.mask.tolist() == [False, False, True, False, True]
    assert found.units is not None
    assert len(np.unique(found.units)) == 2, "a row without a customer is a unit of its own"


def test_what_a_model_was_trained_on_is_read_once(
    run: Run, canary: canaries.Canary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = sealed(tmp_path, "trained", {"train": TABLE.slice(0, 2), "test": TABLE.slice(4, 1)})
    monkeypatch.setattr(canary_observations, "seen_by", lambda run, model: [trained.ref])
    monkeypatch.setattr(canary_observations, "read_handoff", lambda store, ref, kind: trained)
    for name in ("one", "two"):
        rows = rows_of(run, sealed(tmp_path, name, {"test": TABLE}))
        rows.leave_out(canary, [canary.version, canary.version])
        assert rows.fresh(canary, []).mask.tolist() == [False, False, True, False, False]
        monkeypatch.setattr(canary_observations, "read_handoff", None)


def test_rows_with_other_columns_than_the_canarys_are_refused_and_not_fresh(
    run: Run, canary: canaries.Canary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sealed(tmp_path, "before", {"test": TABLE})
    monkeypatch.setattr(
        canary_observations, "trained_with", lambda store, checkpoint: SimpleNamespace(dataset=before.ref)
    )
    monkeypatch.setattr(canary_observations, "read_handoff", lambda store, ref, kind: before)
    in_another_split = TABLE.append_column("part", pa.array(["test"] * 5))  # names a split, so it is not part of a row
    refuse_other_columns(run, sealed(tmp_path, "same", {"test": in_another_split}), canary)
    more = sealed(tmp_path, "more", {"test": TABLE.append_column("age", pa.array(range(5)))})
    with pytest.raises(InsufficientEvidence, match=r"other columns than when it was trained \(age\)") as raised:
        refuse_other_columns(run, more, canary)
    assert "trainwright canary tiny --withdraw" in str(raised.value.remedy)
    monkeypatch.setattr(canary_observations, "trained_with", lambda store, checkpoint: SimpleNamespace(dataset=None))
    refuse_other_columns(run, more, canary)  # an import names no dataset


def test_the_rows_of_many_nights_are_left_out_in_one_pass(
    run: Run, canary: canaries.Canary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(run, sealed(tmp_path, "one", {"test": TABLE}))
    digests = rows.fresh(canary, []).digests
    passes: list[int] = []
    left_out = SetDigests._leave_out
    monkeypatch.setattr(SetDigests, "_leave_out", lambda self, known: (passes.append(1), left_out(self, known))[1])
    nights = [night(canary, run, digests[:1]), night(canary, run, digests[2:3]), night(canary, run, digests[:1])]
    assert rows.fresh(canary, nights).mask.tolist() == [False, True, False, False, True]
    assert passes == [1]
