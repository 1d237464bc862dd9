"""The loaders: every row where the order puts it, at any world size, from any cursor, wherever the rows are held."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_contracts.errors import UsageError
from data_contracts.handoffs import Dataset
from data_contracts.pipeline_spec import LoaderSpec, TrainSpec
from tests.support.gang import make_dataset
from tests.support.splits import write_split
from training.loader import MemoryBudget, OrderedLoader, Sampling, Shards, Split, TrainLoader
from training.loader.rows import AllRows, StreamedRows
from training.order import epoch_order, make_plan

GLOBAL = LoaderSpec()
BLOCK = LoaderSpec(shuffle="block", block_rows=4, window_blocks=2)
SHARDS = [8, 9, 8]  # as make_dataset cuts 25 rows into 3


@pytest.fixture(scope="module", params=["parquet", "tfrecord"])
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Dataset]:
    folder = tmp_path_factory.mktemp("data") / "files"
    made = make_dataset(folder, {"train": 25, "val": 7, "tiny": 1}, shards=3, form=request.param)
    return folder, Dataset.from_json(made)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def spec(batch: int, micro: int | None = None) -> TrainSpec:
    return TrainSpec(lightning={}, global_batch_size=batch, micro_batch_size=micro)


def ids(batch: Any) -> list[int]:
    return batch["id"].tolist()


def joined(parts: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(parts))


def loaders(
    dataset: tuple[Path, Dataset],
    ranks: int,
    micro: int | None = None,
    loader: LoaderSpec = GLOBAL,
    room: MemoryBudget | None = None,
) -> list[TrainLoader]:
    split = Split(Shards(*dataset, "train"), {"id": "id"}, None, loader, room)
    plan = make_plan(split.num_rows, spec(8, micro), ranks)
    return [TrainLoader(split, plan, Sampling("dataset", 5, loader), rank) for rank in range(ranks)]


def in_order(loader: LoaderSpec, epochs: int) -> list[int]:
    return joined(epoch_order(loader, SHARDS, "dataset", 5, epoch)(np.arange(24)).tolist() for epoch in range(epochs))


PLACES = [
    # room → what holds the rows
    (MemoryBudget(2**30, 2**30), AllRows, "memory"),
    (MemoryBudget(0, 2**30), AllRows, "cache"),
    (MemoryBudget(160, 0), StreamedRows, "decoding"),  # the ids of four blocks of 5 rows of 8 bytes
]


@pytest.mark.parametrize("loader", [GLOBAL, BLOCK], ids=["global", "block"])
@pytest.mark.parametrize(("room", "kind", "cause"), PLACES, ids=[cause for *_, cause in PLACES])
def test_memory_never_changes_the_order(
    room: MemoryBudget, kind: type, cause: str, loader: LoaderSpec, dataset: tuple[Path, Dataset]
) -> None:
    room = MemoryBudget(room.memory_bytes, room.cache_bytes)
    if kind is StreamedRows and loader is GLOBAL:
        with pytest.raises(UsageError, match="cannot be shuffled globally. Raise train.loader.memory_bytes"):
            loaders(dataset, 1, loader=loader, room=room)
        return
    [made] = loaders(dataset, 1, loader=loader, room=room)
    assert isinstance(made.split._rows, kind)
    assert joined(map(ids, chain(made, made, made))) == in_order(loader, 3)
    assert cause in made.split.spent


def test_windows_that_do_not_fit_are_refused(dataset: tuple[Path, Dataset]) -> None:
    with pytest.raises(UsageError, match=r"memory_bytes 100 does not hold 4 blocks of 4 rows \(about 128 bytes\)"):
        loaders(dataset, 1, loader=BLOCK, room=MemoryBudget(100, 0))


@given(
    shards=st.lists(st.integers(0, 25), min_size=1, max_size=4).filter(lambda rows: sum(rows) >= 12),
    batch=st.sampled_from([1, 2, 4, 6, 12]),
    micro=st.integers(1, 12),
    block=st.one_of(st.none(), st.tuples(st.integers(1, 9), st.integers(1, 3))),
    streamed=st.booleans(),
    data=st.data(),
)
@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
def test_stopped_anywhere_and_gone_on_with_any_gang_each_sample_comes_once_in_the_same_order(
    shards: list[int],
    batch: int,
    micro: int,
    block: tuple[int, int] | None,
    streamed: bool,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    rows = sum(shards)
    folder = tmp_path_factory.mktemp("split")
    dataset = write_split(folder, pa.table({"id": pa.array(range(rows), pa.int64())}), shards)
    sizes = {} if block is None else {"shuffle": "block", "block_rows": block[0], "window_blocks": block[1]}
    loader = LoaderSpec(**sizes)
    # Just enough for two windows of 8-byte rows: less than all rows, in most examples.
    in_shards = MemoryBudget(2 * block[1] * min(block[0], max(shards)) * 8, 0) if block and streamed else None
    split = Split(Shards(folder, dataset, "train"), ["id"], None, loader, in_shards)
    worlds = [world for world in range(1, batch + 1) if batch % world == 0]

    def run(world: int, begun: int, num_steps: int) -> list[list[int]]:
        return steps_of(split, Sampling("d", 3, loader), (rows, batch, micro), world, begun, num_steps)

    per_epoch = rows // batch
    stop = data.draw(st.integers(0, 2 * per_epoch), label="stop")
    before, after = (data.draw(st.sampled_from(worlds), label=label) for label in ("before", "after"))
    taken = run(before, 0, stop) + run(after, stop, 2 * per_epoch - stop)
    for epoch in range(2):
        order = epoch_order(loader, shards, "d", 3, epoch)(np.arange(per_epoch * batch))
        assert joined(taken[epoch * per_epoch : (epoch + 1) * per_epoch]) == order.tolist()
        assert len(set(order.tolist())) == per_epoch * batch


def endless(loader: TrainLoader) -> Iterable[Any]:
    while True:
        yield from loader


def steps_of(
    split: Split, sampling: Sampling, sizes: tuple[int, int, int | None], ranks: int, begun: int, num_steps: int
) -> list[list[int]]:
    """The ids in so many steps of a gang from a step on, by step.

    Args:
        sizes: the rows of an epoch, of a global batch and of a micro-batch.
    """
    rows, batch, micro = sizes
    plan = make_plan(rows, spec(batch).model_copy(update={"micro_batch_size": micro}), ranks)
    parts = []
    for rank in range(ranks):
        loader = TrainLoader(split, plan, sampling, rank)
        loader.load_state_dict({"samples": begun * batch})
        taken = joined(one[0].tolist() for one in islice(endless(loader), num_steps * plan.accumulate))
        parts.append(np.reshape(taken, (num_steps, batch // ranks)))
        assert loader.state_dict() == {"samples": (begun + num_steps) * batch}
        loader.close()
    return np.concatenate(parts, axis=1).tolist()


def test_a_cursor_inside_a_global_batch_is_refused(dataset: tuple[Path, Dataset]) -> None:
    [loader] = loaders(dataset, 1)
    with pytest.raises(UsageError, match="was made after 12 samples, in the middle of a global batch of 8"):
        loader.load_state_dict({"samples": 12})


def test_a_transform_runs_where_the_batch_is_handed_over(dataset: tuple[Path, Dataset]) -> None:
    # Were it to run ahead, its random numbers would mix with those of the step.
    seen: list[tuple[list[int], str]] = []

    def transform(batch: Any) -> Any:
        seen.append((ids(batch), threading.current_thread().name))
        return batch["id"] * 10

    split = Split(Shards(*dataset, "train"), {"id": "id"}, transform)
    loader = TrainLoader(split, make_plan(25, spec(8), 1), Sampling("dataset", 5), 0)
    batch = next(iter(loader))
    assert seen == [(in_order(GLOBAL, 1)[:8], threading.current_thread().name)]
    assert batch.tolist() == [10 * one for one in seen[0][0]]
    assert loader.split.spent["transform"] > 0


def test_what_fails_in_the_thread_is_raised_at_the_batch(
    dataset: tuple[Path, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    [loader] = loaders(dataset, 1, micro=2)
    gather = loader.split._rows.gather
    monkeypatch.setattr(loader.split._rows, "gather", lambda rows, *_: gather(rows[: 10 // 0]))
    with pytest.raises(ZeroDivisionError):
        next(iter(loader))
    assert loader.state_dict() == {"samples": 0}
    monkeypatch.undo()
    assert joined(map(ids, loader)) == in_order(GLOBAL, 1)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("name", ["train", "val"])
@pytest.mark.parametrize("room", [MemoryBudget(2**30, 0), MemoryBudget(120, 0)], ids=["memory", "shards"])
def test_in_order_every_row_comes_once_and_ranks_take_equally_many_batches(
    room: MemoryBudget, name: str, size: int, ranks: int, dataset: tuple[Path, Dataset]
) -> None:
    room = MemoryBudget(room.memory_bytes, 0)
    split = Split(Shards(*dataset, name), {"id": "id"}, room=room, in_order=True)
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
    split = Split(Shards(*dataset, "tiny"), {"id": "id"})
    assert [joined(map(ids, OrderedLoader(split, 4, rank, 3))) for rank in range(3)] == [[0], [0], [0]]


def test_batches_share_no_memory_with_the_split_or_each_other(dataset: tuple[Path, Dataset]) -> None:
    [loader] = loaders(dataset, 1, micro=2)
    batches = [batch["id"] for batch in loader]
    batches[0].zero_()
    assert joined(batch.tolist() for batch in batches[1:]) == in_order(GLOBAL, 1)[2:]
    split = Split(Shards(*dataset, "train"), ["x"])
    for rows in (slice(0, 2), np.array([0, 1])):
        expected = split.take(rows)[0].clone()
        split.take(rows)[0].zero_()
        assert torch.equal(split.take(rows)[0], expected)


def mixed(folder: Path, weights: dict[str, float]) -> Split:
    table = pa.table({"id": pa.array(range(60), pa.int64()), "from": ["web"] * 40 + ["book"] * 15 + ["code"] * 5})
    loader = LoaderSpec.model_validate({"mixture": {"column": "from", "weights": weights}})
    return Split(Shards(folder, write_split(folder, table, [25, 35]), "train"), ["id"], None, loader)


@pytest.mark.parametrize(("ranks", "micro"), [(1, None), (2, 2), (4, 1)])
def test_a_mixture_goes_on_from_epoch_to_epoch_on_any_gang(ranks: int, micro: int | None, tmp_path: Path) -> None:
    weights = {"web": 2.0, "book": 2.0, "code": 0.0}
    split = mixed(tmp_path, weights)
    loader = LoaderSpec.model_validate({"mixture": {"column": "from", "weights": weights}})
    sizes = (split.epoch_rows(8), 8, micro)
    plan = make_plan(sizes[0], spec(8, micro), ranks)
    assert (plan.steps_per_epoch, plan.dropped_rows) == (6, 0)
    run = partial(steps_of, split, Sampling("d", 0, loader), sizes)
    taken = joined(run(1, 0, 7) + run(ranks, 7, 13))
    assert taken == joined(run(1, 0, 20))
    web, book = ([one for one in taken if low <= one < high] for low, high in ((0, 40), (40, 55)))
    assert len(web) + len(book) == 160
    assert abs(len(web) - 80) < 25
    assert sorted(web[:40]) == list(range(40))
    assert [sorted(book[at : at + 15]) for at in (0, 15, 30)] == [list(range(40, 55))] * 3


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ({"web": 1, "book": 1}, "rows with from 'code' have no weight. Give them one; 0 leaves them out"),
        ({"web": 1, "book": 1, "code": 1, "song": 1}, "split train has no row with from 'song'"),
    ],
)
def test_a_mixture_of_what_is_not_there_is_refused(weights: dict[str, float], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=sentence):
        mixed(tmp_path, weights)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("begin", [0, 8, 16])
def test_what_is_skipped_is_counted_and_never_handed_out(world: int, begin: int, dataset: tuple[Path, Dataset]) -> None:
    """Six steps of 4 rows an epoch; the third is skipped in the first epoch, and the last two in the second."""
    skip = [(8, 12), (24 + 16, 48)]
    transformed: list[Any] = []

    def transform(batch: Any) -> Any:
        transformed.append(batch)
        return batch

    folder, made = dataset
    plan = make_plan(25, spec(4, 2), world)
    handed: dict[int, list[list[int]]] = {}
    for rank in range(world):
        rows = Split(Shards(folder, made, "train"), None, transform)
        loader = TrainLoader(rows, plan, Sampling(made.ref.id, 3), rank, skip=skip)
        loader.load_state_dict({"samples": begin})
        for batch in [*islice(loader, len(loader) - begin // 4 * plan.accumulate), *loader]:
            handed.setdefault(rank, []).append([] if batch is None else ids(batch))
        assert loader.samples == 48
        assert not loader.passes_over
        loader.close()
    order = np.concatenate([epoch_order(GLOBAL, SHARDS, made.ref.id, 3, epoch)(np.arange(24)) for epoch in (0, 1)])
    whole = TrainLoader(Split(Shards(folder, made, "train")), make_plan(25, spec(4), 1), Sampling(made.ref.id, 3), 0)
    assert whole.rows(6, 30).tolist() == order[6:30].tolist()
    wanted = [row for at, row in enumerate(order) if at >= begin and not any(a <= at < b for a, b in skip)]
    assert sorted(joined(joined(handed.values()))) == sorted(wanted)
    assert all(len(parts) == (48 - begin) // 4 * plan.accumulate for parts in handed.values())
    assert sum(map(len, map(ids, transformed))) == len(wanted), "nothing is done with what is skipped"
