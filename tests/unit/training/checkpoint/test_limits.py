"""A checkpoint that could be written but not read is refused by the writer, and a rank names its newest alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from data_contracts.errors import UsageError
from data_contracts.handoffs import Checkpoint, Ref
from infra.gang.rank_files import RankFiles
from infra.store import open_store
from training.checkpoint import files, read_index
from training.checkpoint.saver import CheckpointTarget, capture, save
from training.fit.reports import NAMED_CHECKPOINTS, Reports


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


def test_a_rank_names_its_newest_checkpoints_and_says_how_many_there_were(tmp_path: Path) -> None:
    reports = Reports(tmp_path, 0, 1.0)
    for step in range(1, 201):
        ref = Ref(uri=f"trainings/t-0/checkpoints/{step}-g0", id="1" * 64, seal="2" * 64)
        fields = {"training": "trainings/t-0", "step": step, "epoch": 0, "generation": 0, "world_size": 1, "key": "k"}
        reports.sealed(Checkpoint(ref=ref, **fields))
    report = RankFiles(tmp_path, 0).report()
    assert report.num_checkpoints == 200
    assert [one.step for one in report.checkpoints] == list(range(201 - NAMED_CHECKPOINTS, 201))
