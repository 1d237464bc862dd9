"""A checkpoint that could be written but not read is refused by the trial save, and by the writer itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from data_contracts.canonical import canonical
from data_contracts.errors import UsageError
from data_contracts.handoffs import Checkpoint, Ref
from infra.gang.rank_files import RankFiles
from infra.store import open_store
from training.checkpoint import files, read_index
from training.checkpoint.files import Entry, TensorSlice
from training.checkpoint.saver import (
    Capture,
    CheckpointTarget,
    capture,
    check_sizes,
    future_bytes,
    index_bytes,
    merge,
    save,
    state_bytes,
)
from training.fit.guards import Agreement, check_checkpoint_size
from training.fit.reports import NAMED_CHECKPOINTS, Reports


def state_of(module: torch.nn.Module, *, stepped: bool) -> dict[str, Any]:
    optimizer = torch.optim.Adam(module.parameters())
    if stepped:
        module(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    return {"state_dict": module.state_dict(), "optimizer_states": [optimizer.state_dict()]}


def test_the_trial_knows_the_size_of_the_index_before_the_first_step(tmp_path: Path) -> None:
    module = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(8)))
    store = open_store(str(tmp_path / "store"))
    taken = capture(state_of(module, stepped=True), {}, 0)
    ref = save(CheckpointTarget(store, "trainings/t-0/checkpoints/1-g0", {}, {}, {}, tmp_path), taken, 1, [])
    written = (store.local(ref) / "index.json").stat().st_size
    assert written <= index_bytes(taken) < 1.1 * written
    dry = capture(state_of(module, stepped=False), {}, 0, dry=True)
    assert dry.files == {}
    optimizers = [torch.optim.Adam(module.parameters())]
    assert 0.7 * written < index_bytes(dry) + future_bytes(dry, optimizers) < 1.3 * written


def test_the_writer_obeys_the_readers_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path / "store"))
    taken = capture({"state_dict": {f"w{at}": torch.ones(1) for at in range(20)}}, {}, 0)
    place = CheckpointTarget(store, "trainings/t-0/checkpoints/1-g0", {}, {}, {}, tmp_path)
    monkeypatch.setattr(files, "MAX_JSON_BYTES", 1000)
    with pytest.raises(
        UsageError, match=r"would have a file index\.json of [\d,]+ bytes, .* more than 1,000 cannot be read"
    ):
        save(place, taken, 1, [])
    assert not store.exists(f"{place.uri}/manifest.json")
    monkeypatch.undo()
    again = CheckpointTarget(store, "trainings/t-0/checkpoints/2-g0", {}, {}, {}, tmp_path)
    read_index(store.local(save(again, taken, 1, [])))
    monkeypatch.setattr(files, "MAX_JSON_BYTES", 1000)
    with pytest.raises(UsageError, match="cannot be read"):
        check_checkpoint_size(taken, [], Agreement(60))


def test_the_size_of_many_ranks_is_their_sum_to_the_byte_or_a_little_more() -> None:
    def part(rank: int, ranks: int, names: int) -> Capture:
        taken = Capture(rank, dry=True)
        for at in range(names):
            name = f"state_dict/model.transformer.layers.{at}.block.mlp.down_projection.weight"
            piece = TensorSlice(file=f"weights-{rank}.safetensors", key=name[11:], offset=(rank, 0), shape=(1, 4096))
            taken.entries[name] = Entry(shape=(ranks, 4096), dtype="bfloat16", sharded=True, slices=[piece])
        return taken

    parts = [part(rank, 8, 5) for rank in range(8)]
    told, summed = len(canonical(merge([one.entries for one in parts]).to_json())), sum(map(index_bytes, parts))
    assert told <= summed < 1.1 * told
    # Such a checkpoint was sealed, verified and committed before, and could not be read then.
    whole = index_bytes(part(0, 560, 2 * 3411)) + 559 * index_bytes(part(1, 560, 2 * 3411))
    with pytest.raises(
        UsageError, match=r"index\.json of .* bytes, but a file of more than 268,435,456 cannot be read"
    ):
        check_sizes(whole, state_bytes(parts[0]))
    check_sizes(index_bytes(part(0, 64, 3411)) + 63 * index_bytes(part(1, 64, 3411)), 0)


def test_a_rank_names_its_newest_checkpoints_and_says_how_many_there_were(tmp_path: Path) -> None:
    reports = Reports(tmp_path, 0, 1.0)
    sizes = []
    for step in range(1, 201):
        ref = Ref(uri=f"trainings/t-0/checkpoints/{step}-g0", id="1" * 64, seal="2" * 64)
        fields = {"training": "trainings/t-0", "step": step, "epoch": 0, "generation": 0, "world_size": 1, "key": "k"}
        reports.sealed(Checkpoint(ref=ref, **fields))
        sizes.append((tmp_path / "rank-0.json").stat().st_size)
    report = RankFiles(tmp_path, 0).report()
    assert report is not None
    assert report.num_checkpoints == 200
    assert [one.step for one in report.checkpoints] == list(range(201 - NAMED_CHECKPOINTS, 201))
    assert sizes[-1] < 1.1 * sizes[NAMED_CHECKPOINTS]
