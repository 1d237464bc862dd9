"""Batches come in groups, each batch is a step of its own, and the results are those of single batches."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import torch

from training.predict import batches
from training.predict.batches import Batches, Group, bytes_in, copied, steps_of

ROWS = 23
SIZE = 4


class Raw:
    """Rows 0 to ROWS - 1, cut at the ends of blocks as `RawRows.batches` cuts them."""

    schema = pa.schema([("x", pa.int64())])

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once

    def batches(self, first: int, block: int) -> Any:
        while first < ROWS:
            end = min(first + self._at_once, ROWS, first + block - first % block)
            yield first, pa.RecordBatch.from_pydict({"x": list(range(first, end))})
            first = end


class Features:
    def rows(self, at: int, batch: pa.RecordBatch) -> pa.Table:
        return pa.Table.from_batches([batch])

    def batches(self, at: int, rows: pa.Table, size: int) -> Any:
        return iter(torch.tensor(rows.column("x").to_pylist()).split(size))


def served(
    first: int, *, grouped: bool, keep: tuple[str, ...] = (), output_bytes: float | None = 1.0, at_once: int = 8
) -> Any:
    request: Any = SimpleNamespace(keep=list(keep), batch_size=SIZE)
    raw: Any = Raw(at_once)
    features: Any = Features()
    made = Batches(raw, features, request, first, grouped=grouped)
    made.output_bytes = output_bytes
    return made


@pytest.fixture(autouse=True)
def _blocks_of_8_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "block_rows", lambda size: 8)


@pytest.mark.parametrize("first", [0, 8, 16])
@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("at_once", [3, 8])
def test_the_batches_are_the_same_in_groups_and_alone(first: int, grouped: bool, at_once: int) -> None:
    made = served(first, grouped=grouped, keep=("x",), at_once=at_once)
    handed = list(made)
    every = [batch for group in handed for batch in group] if grouped else handed
    assert [one.tolist() for one in every] == [list(range(at, min(at + 4, ROWS))) for at in range(first, ROWS, 4)]
    assert (len(handed) < len(every)) == (grouped and at_once == 8 and first < 16)
    for group in made.waiting:
        assert group.kept["x"].to_pylist() == list(range(group.first, group.first + group.rows))
        assert (group.first + group.rows) % 4 == 0 or group.first + group.rows == ROWS


def test_groups_are_as_large_as_their_bytes_permit_and_begin_with_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [len(group) for group in served(0, grouped=True, output_bytes=None)] == [1] * 6
    monkeypatch.setattr(batches, "GROUP_BYTES", 2)
    assert {len(group) for group in served(0, grouped=True)} == {1}


def test_each_batch_is_a_step_with_its_number_and_results_keep_their_values() -> None:
    memory = torch.zeros(2)
    asked: list[Any] = []
    moved: list[int] = []

    def step(batch: int, number: int) -> dict[str, Any]:
        asked.append((batch, number))
        memory.fill_(batch)  # as a compiled module reuses its memory
        return {"a": memory, "b": (memory, "text")}

    waiting: Any = SimpleNamespace(waiting=deque([Group(0, [2, 2], {})]))
    made = steps_of(step, waiting, 7, numbered=True, moved=lambda: moved.append(1))([10, 20])
    assert asked == [(10, 7), (20, 8)]
    assert [one["a"].tolist() for one in made] == [[10, 10], [20, 20]]
    assert [one["b"][0].tolist() for one in made] == [[10, 10], [20, 20]]
    assert len(moved) == 2
    assert waiting.waiting[0].done == 2
    assert steps_of(lambda batch: torch.tensor(batch), waiting, 0, numbered=False, moved=lambda: None)([1])[0] == 1


def test_an_error_names_the_rows_of_its_batch() -> None:
    group = Group(100, [4, 4, 1], {})
    assert group.current == (100, 4)
    group.done = 2
    assert group.current == (108, 1)


def test_bytes_are_those_of_the_tensors() -> None:
    assert bytes_in(({"a": torch.zeros(2)}, [torch.zeros(1, dtype=torch.int64)], "text")) == 16
    assert copied(["text"]) == ["text"]
