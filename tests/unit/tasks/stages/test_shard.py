"""What is reused, and what a dataset is added to: the same files, new files, fewer, other settings, broken parents."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from infra.records.handoffs import verify_elsewhere
from tasks.run.run import open_run
from tasks.run.spec_check import read_spec
from tasks.stages import shard as stage
from tests.support.damage import overwrite
from tests.support.files import write_files
from tests.support.nights import SPLIT, Nights, table, uris
from tests.support.tiny import write_project


@pytest.fixture
def nights(nights: Nights) -> Nights:
    """A project with one file of 200 rows."""
    nights.put("1.csv", table(0, 200, a=1))
    return nights


def test_unchanged_input_is_reused_without_a_child(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    first = nights.shard()
    monkeypatch.setattr(stage, "run_child", lambda *_, **__: pytest.fail("a child was started"))
    assert nights.shard(workers=3, memory_bytes=2**21) == first, "these never change the result"


def test_new_files_become_new_shards_beside_those_of_the_parent(nights: Nights) -> None:
    first = nights.shard()
    nights.put("2.csv", table(200, 100, a=1))
    second = nights.shard()
    nights.put("3.csv", table(300, 50, a=1))
    third = nights.shard()
    assert sorted(nights.rows(third)[1]) == list(range(350))
    for split, shards in third.splits.items():
        assert shards[: len(second.splits[split])] == second.splits[split]
        assert second.splits[split][: len(first.splits[split])] == first.splits[split]
        assert [shard.path for shard in shards] == [f"{split}-{n:05d}.parquet" for n in range(len(shards))]
    assert uris(third) == {one.ref.uri for one in (first, second, third)}
    manifest = nights.run.store.verify(third.ref)
    own = {shard.path for shard in chain(*third.splits.values()) if shard.uri == third.ref.uri}
    assert {file.path for file in manifest.files} == own | {"schema.json", "handoff.json"}
    assert manifest.settings["appended_to"] == second.ref.id
    assert second.ref.to_json() in manifest.provenance["parents"]


ANEW: dict[str, dict[str, Any]] = {
    "without append": {"append": False},
    "another order": {"seed": 1},
    "another split": {"split": {**SPLIT, "seed": 3}},
    "larger shards": {"target_size_bytes": 4096},
    "a changed file": {},
}


@pytest.mark.parametrize("case", ANEW)
def test_other_settings_or_a_changed_file_make_all_anew(nights: Nights, case: str) -> None:
    nights.shard()
    first = 7 if case == "a changed file" else 0
    nights.put("1.csv", table(first, 200, a=1))
    nights.put("2.csv", table(first + 200, 100, a=1))
    second = nights.shard(**ANEW[case])
    assert uris(second) == {second.ref.uri}
    assert sorted(nights.rows(second)[1]) == list(range(first, first + 300))


def test_a_broken_parent_is_neither_extended_nor_reused(nights: Nights) -> None:
    first = nights.shard()
    nights.put("2.csv", table(200, 100, a=1))
    second = nights.shard()
    shard = Path(nights.run.store.uri) / first.ref.uri / first.splits["train"][0].path
    overwrite(shard, shard.read_bytes()[:-1] + b"?")
    with pytest.raises(Exception, match=r"train-00000"):
        verify_elsewhere(nights.run.store, second)
    again = nights.shard()
    assert uris(again) == {again.ref.uri}
    assert again.ref.uri != second.ref.uri


def test_documents_that_are_not_divided_are_said(nights: Nights) -> None:
    write_files(nights.folder / "days", {f"{number}.txt": "a\n" * (2 if number else 40) for number in range(12)})
    split = {"by": "position", "fractions": {"train": 0.5, "test": 0.5}, "gap": 1}
    source = {"uri": "days/*.txt", "format": "text", "pieces": {"lines": 1}}
    shards = {"split": split, "target_size_bytes": 2048}
    spec = write_project(nights.folder, {"data": {"source": source}, "shards": shards})
    run = open_run(read_spec(spec), recorded=False)
    dataset = stage._make(run, None)
    assert dataset.documents == {"all": 12, "undivided": 11}
    assert stage.find_dataset(run) == dataset
    said = "; 11 of 12 documents are too short to be divided, and are in one split each"
    assert said in stage._told(run, dataset, None).sentence
