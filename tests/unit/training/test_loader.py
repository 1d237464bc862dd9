"""Our loader: every row where the order puts it, ready tensors, and a cursor that any number of ranks goes on from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from data_contracts.errors import UsageError
from data_contracts.handoffs import Dataset
from data_contracts.spec import TrainSpec
from tests.support.gang import make_dataset
from training import formats
from training.formats.normal import normalise
from training.formats.schema import FILE, columns_of, to_json
from training.loader import OrderedLoader, Split, TrainLoader
from training.order import global_order
from training.plan import make_plan


@pytest.fixture(scope="module", params=["parquet", "tfrecord"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Dataset]:
    folder = tmp_path_factory.mktemp("data") / "files"
    return folder, Dataset.from_json(
        make_dataset(folder, {"train": 25, "val": 7, "tiny": 1}, shards=3, form=request.param)
    )


def spec(batch: int, micro: int | None = None, ranks: int = 1) -> TrainSpec:
    return TrainSpec(lightning={}, global_batch_size=batch, micro_batch_size=micro, devices=ranks)


def ids(batch: Any) -> list[int]:
    return batch["id"].tolist()


def joined(parts: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(parts))


def loaders(dataset: tuple[Path, Dataset], ranks: int, micro: int | None = None, seed: int = 5) -> list[TrainLoader]:
    split = Split(*dataset, "train", {"id": "id"})
    plan = make_plan(split.num_rows, spec(8, micro), ranks)
    return [TrainLoader(split, plan, "dataset", seed, rank) for rank in range(ranks)]


def steps(gang: list[TrainLoader], epochs: int) -> list[list[int]]:
    """Ids of each optimizer step, over all ranks, sorted within the step."""
    found: list[list[int]] = []
    for _ in range(epochs):
        parts = [list(map(ids, loader)) for loader in gang]
        each = gang[0].plan.accumulate
        for step in range(gang[0].plan.steps_per_epoch):
            found.append(sorted(joined(joined(part[step * each : (step + 1) * each]) for part in parts)))
    return found


@pytest.mark.parametrize(("ranks", "micro"), [(1, None), (2, None), (2, 2), (4, 1)])
def test_every_step_takes_the_same_rows_on_any_number_of_ranks(
    ranks: int, micro: int | None, dataset: tuple[Path, Dataset]
) -> None:
    orders = [global_order(25, "dataset", 5, epoch) for epoch in range(2)]
    expected = [sorted(order[at * 8 : at * 8 + 8].tolist()) for order in orders for at in range(3)]
    assert steps(loaders(dataset, ranks, micro), 2) == expected


def test_one_rank_alone_follows_the_order_itself(dataset: tuple[Path, Dataset]) -> None:
    [loader] = loaders(dataset, 1)
    assert joined(map(ids, loader)) == global_order(25, "dataset", 5, 0)[:24].tolist()
    assert joined(map(ids, loader)) == global_order(25, "dataset", 5, 1)[:24].tolist()


@pytest.mark.parametrize("stop", [1, 3, 4])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 4), (4, 1), (2, 2)])
def test_the_cursor_goes_on_with_another_number_of_ranks(
    stop: int, before: int, after: int, dataset: tuple[Path, Dataset]
) -> None:
    undisturbed = steps(loaders(dataset, 1), 3)
    first = loaders(dataset, before, micro=1)
    taken = [iter(loader) for loader in first]
    for number in range(stop):
        if number == first[0].plan.steps_per_epoch:
            taken = [iter(loader) for loader in first]
        for _ in range(first[0].plan.accumulate):
            for part in taken:
                next(part)
    states = [loader.state_dict() for loader in first]
    assert states == [{"samples": stop * 8}] * before
    second = loaders(dataset, after, micro=2)
    for loader in second:
        loader.load_state_dict(states[0])
    assert steps(second, 1) == undisturbed[stop : stop + 3]


def test_a_cursor_inside_a_global_batch_is_refused(dataset: tuple[Path, Dataset]) -> None:
    [loader] = loaders(dataset, 1)
    with pytest.raises(UsageError, match="stands at 12 samples, in the middle of a global batch of 8"):
        loader.load_state_dict({"samples": 12})


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("name", ["train", "val"])
def test_in_order_every_row_comes_once_and_ranks_take_equally_many_batches(
    name: str, size: int, ranks: int, dataset: tuple[Path, Dataset]
) -> None:
    split = Split(*dataset, name, {"id": "id"})
    parts = [OrderedLoader(split, size, rank, ranks) for rank in range(ranks)]
    batches = [list(map(ids, part)) for part in parts]
    assert len({len(part) for part in batches}) == 1
    assert [len(part) for part in parts] == [len(part) for part in batches]
    assert sorted(joined(joined(batches))) == list(range(split.num_rows))
    assert all(1 <= len(batch) <= size + (ranks > 1) for part in batches for batch in part)
    if ranks == 1:
        assert joined(batches[0]) == list(range(split.num_rows))
        assert all(len(batch) == size for batch in batches[0][:-1])


def test_a_split_smaller_than_the_gang_goes_to_every_rank(dataset: tuple[Path, Dataset]) -> None:
    split = Split(*dataset, "tiny", {"id": "id"})
    assert [joined(map(ids, OrderedLoader(split, 4, rank, 3))) for rank in range(3)] == [[0], [0], [0]]


def test_a_batch_has_the_form_that_the_spec_says(dataset: tuple[Path, Dataset]) -> None:
    rows = np.array([3, 0])
    as_tuple = Split(*dataset, "train", ["x", "y"]).take(rows)
    assert isinstance(as_tuple, tuple)
    assert [(part.dtype, tuple(part.shape)) for part in as_tuple] == [(torch.float32, (2, 4)), (torch.int64, (2,))]
    everything = Split(*dataset, "train").take(rows)
    assert list(everything) == ["id", "x", "a", "b", "y"]
    assert everything["a"].dtype == torch.float32
    stacked = Split(*dataset, "train", {"inputs": ["b", "a", "y"], "id": "id"}).take(rows)
    assert stacked["inputs"].dtype == torch.float32
    assert torch.equal(stacked["inputs"][:, 1], everything["a"])
    assert torch.equal(stacked["inputs"][:, 2], everything["y"].float())
    assert stacked["id"].tolist() == [3, 0]


def test_what_a_batch_does_not_share_memory_with_the_split(dataset: tuple[Path, Dataset]) -> None:
    split = Split(*dataset, "train", ["x"])
    for rows in (slice(0, 2), np.array([0, 1])):
        expected = split.take(rows)[0].clone()
        split.take(rows)[0].zero_()
        assert torch.equal(split.take(rows)[0], expected)


def test_a_transform_gets_every_batch(dataset: tuple[Path, Dataset]) -> None:
    split = Split(*dataset, "train", ["y"], lambda batch: batch[0] * 10)
    assert set(split.take(slice(0, 25)).tolist()) == {0, 10}


@pytest.mark.parametrize(
    ("split", "batch", "sentence"),
    [
        ("test", None, "The dataset has no split 'test'; it has train, val, tiny."),
        ("train", ["z"], "The dataset has no column 'z'; it has id, x, a, b, y."),
        ("train", [["a", "x"]], "train.batch: column 'x' is no number per row, so it cannot be stacked with others."),
    ],
)
def test_what_is_not_there_is_a_usage_error(
    split: str, batch: Any, sentence: str, dataset: tuple[Path, Dataset]
) -> None:
    with pytest.raises(UsageError) as caught:
        Split(*dataset, split, batch)
    assert caught.value.message == sentence


def write(folder: Path, table: pa.Table) -> Dataset:
    table = normalise(table)
    formats.get("parquet").write_shard(table, folder / "train-0.parquet")
    (folder / FILE).write_text(json.dumps(to_json(table.schema)))
    ref = {"uri": "datasets/d-0", "id": "d", "seal": "s"}
    shard = {"uri": "", "path": "train-0.parquet", "rows": table.num_rows, "bytes": 0, "blake3": ""}
    return Dataset.from_json(
        {"ref": ref, "key": "d", "format": "parquet", "splits": {"train": [shard]}, "columns": columns_of(table.schema)}
    )


def test_every_type_of_column_has_a_form(tmp_path: Path) -> None:
    table = pa.table(
        {
            "text": ["a", None, "ü"],
            "raw": pa.array([b"1", b"", b"\x00"], pa.binary()),
            "ragged": pa.array([[1, 2], [], [3]], pa.list_(pa.int64())),
            "image": pa.array([[[1, 2], [3, 4]]] * 3, pa.list_(pa.list_(pa.uint8()))),
            "words": [["a", "b"], [], ["c"]],
            "blobs": pa.array([[b"1"], [], [b"2", b"3"]], pa.list_(pa.binary())),
            "flag": [True, False, True],
            "small": pa.array([1, 2, 3], pa.uint8()),
            "half": pa.array(np.array([1, 2, 3], np.float16)),
            "gap": [1.5, None, 2.5],
            "when": pa.array([0, 1, 2], pa.timestamp("ms")),
            "day": pa.array([0, 1, 2], pa.date32()),
        }
    )
    batch = Split(tmp_path, write(tmp_path, table), "train").take(np.array([2, 0]))
    assert batch["text"] == ["ü", "a"]
    assert batch["raw"] == [b"\x00", b"1"]
    assert [part.tolist() for part in batch["ragged"]] == [[3], [1, 2]]
    assert batch["words"] == [["c"], ["a", "b"]]
    assert batch["blobs"] == [[b"2", b"3"], [b"1"]]
    assert batch["image"].shape == (2, 2, 2)
    kinds = {name: str(batch[name].dtype) for name in ("image", "flag", "small", "half", "gap", "when", "day")}
    assert kinds == {
        "image": "torch.uint8",
        "flag": "torch.bool",
        "small": "torch.uint8",
        "half": "torch.float16",
        "gap": "torch.float32",
        "when": "torch.int64",
        "day": "torch.int32",
    }
    assert batch["when"].tolist() == [2, 0]
    assert torch.isnan(Split(tmp_path, write_again(tmp_path), "train", ["gap"]).take(slice(1, 2))[0]).all()


def write_again(folder: Path) -> Dataset:
    (folder / "train-0.parquet").unlink()
    return write(folder, pa.table({"gap": [1.5, None, 2.5]}))


def test_a_whole_number_that_is_missing_is_refused(tmp_path: Path) -> None:
    dataset = write(tmp_path, pa.table({"count": pa.array([1, None, 3], pa.int64())}))
    with pytest.raises(UsageError, match="Column 'count' has no value in 1 rows of split train"):
        Split(tmp_path, dataset, "train")
