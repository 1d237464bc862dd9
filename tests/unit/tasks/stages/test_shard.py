"""What is reused, and what a dataset is added to: the same files, new files, fewer, other settings, broken parents."""

from __future__ import annotations

import csv
import random
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest

from data_contracts.errors import SpecError
from data_contracts.handoffs import Dataset
from infra.records.handoffs import local_dataset, verify_elsewhere
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tasks.stages import shard as stage
from tests.support.damage import overwrite
from tests.support.shard_rows import shard_reader
from tests.support.tiny import write_project
from training.formats.schema import read_schema

pytestmark = [pytest.mark.usefixtures("home"), pytest.mark.warm]


def write(folder: Path, name: str, first: int, rows: int = 200, header: str = "id,a,b,c,label") -> None:
    draw = random.Random(first)
    with (folder / name).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header.split(","))
        for number in range(first, first + rows):
            writer.writerow([number, *(round(draw.uniform(-1, 1), 6) for _ in range(3)), number % 2])


class Project:
    """A tiny project whose data is all CSV files in `days/`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.days = folder, folder / "days"
        self.days.mkdir(parents=True)
        write(self.days, "1.csv", 0)
        self.opened: list[Run] = []

    def shard(self, **shards: object) -> tuple[Dataset, bool]:
        section = {"split": {"key": "id"}, "target_size_bytes": 2048, "append": True, **shards}
        spec = write_project(self.folder, {"data": {"source": "days/*.csv"}, "shards": section})
        self.opened.append(open_run(read_spec(spec), recorded=False))
        found = stage.find_dataset(self.opened[-1])
        return (found, True) if found else (stage._make(self.opened[-1], None), False)

    @property
    def store(self):
        return self.opened[-1].store

    def ids(self, dataset: Dataset) -> list[int]:
        """The ids of all rows, wherever the shards lie."""
        root = local_dataset(self.store, dataset)
        for _ in Path(dataset.ref.uri).parts:
            root = root.parent
        schema = read_schema(root / dataset.ref.uri)
        read = shard_reader(dataset.format)
        shards = chain(*dataset.splits.values())
        return pa.concat_tables([read(root / one.uri / one.path, schema) for one in shards])["id"].to_pylist()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "tiny")


def test_unchanged_input_is_reused_without_a_child(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    first, reused = project.shard()
    assert not reused

    def no_child(*_: object, **__: object) -> None:
        raise AssertionError("a child was started")

    monkeypatch.setattr(stage, "run_child", no_child)
    again, reused = project.shard(workers=3, memory_bytes=2**21)  # which never change the result
    assert reused
    assert again == first


def test_new_files_become_new_shards_beside_those_of_the_parent(project: Project) -> None:
    first, _ = project.shard()
    write(project.days, "2.csv", 200, 100)
    second, reused = project.shard()
    assert not reused
    write(project.days, "3.csv", 300, 50)
    third, _ = project.shard()
    assert sorted(project.ids(third)) == list(range(350))
    for split, shards in third.splits.items():
        assert shards[: len(second.splits[split])] == second.splits[split]
        assert second.splits[split][: len(first.splits[split])] == first.splits[split]
        assert [shard.path for shard in shards] == [f"{split}-{n:05d}.parquet" for n in range(len(shards))]
    assert {shard.uri for shard in chain(*third.splits.values())} == {one.ref.uri for one in (first, second, third)}
    manifest = project.store.verify(third.ref)
    own = {shard.path for shard in chain(*third.splits.values()) if shard.uri == third.ref.uri}
    assert {file.path for file in manifest.files} == own | {"schema.json", "handoff.json"}
    assert manifest.settings["appended_to"] == second.ref.id
    assert second.ref.to_json() in manifest.provenance["parents"]
    assert project.shard() == (third, True)


def test_without_append_all_is_sharded_anew(project: Project) -> None:
    project.shard()
    write(project.days, "2.csv", 200, 100)
    second, _ = project.shard(append=False)
    assert {shard.uri for shard in chain(*second.splits.values())} == {second.ref.uri}


@pytest.mark.parametrize("changes", [{"seed": 1}, {"split": {"key": "id", "seed": 3}}, {"target_size_bytes": 4096}])
def test_other_settings_have_no_parent(project: Project, changes: dict) -> None:
    project.shard()
    write(project.days, "2.csv", 200, 100)
    second, _ = project.shard(**changes)
    assert {shard.uri for shard in chain(*second.splits.values())} == {second.ref.uri}


def test_a_file_that_is_gone_or_changed_makes_all_anew(project: Project) -> None:
    project.shard()
    write(project.days, "1.csv", 7)
    write(project.days, "2.csv", 207, 100)
    second, _ = project.shard()
    assert {shard.uri for shard in chain(*second.splits.values())} == {second.ref.uri}
    assert sorted(project.ids(second)) == list(range(7, 307))


def test_a_broken_parent_is_neither_extended_nor_reused(project: Project) -> None:
    first, _ = project.shard()
    write(project.days, "2.csv", 200, 100)
    second, _ = project.shard()
    shard = Path(project.opened[0].store.uri) / first.ref.uri / first.splits["train"][0].path
    overwrite(shard, shard.read_bytes()[:-1] + b"?")
    with pytest.raises(Exception, match=r"train-00000"):
        verify_elsewhere(project.store, second)
    again, reused = project.shard()
    assert not reused
    assert {one.uri for one in chain(*again.splits.values())} == {again.ref.uri}
    assert again.ref.uri != second.ref.uri


@pytest.mark.parametrize("header", ["id,a,b,c,kind", "id,a,label,c,b"])
def test_new_columns_and_types_have_all_files_sharded_again(project: Project, header: str) -> None:
    project.shard()
    write(project.days, "2.csv", 200, 100, header)
    second, _ = project.shard()
    assert {one.uri for one in chain(*second.splits.values())} == {second.ref.uri}
    assert sorted(project.ids(second)) == list(range(300))


@pytest.mark.parametrize(
    ("split", "sentence"),
    [
        ({"time": "a"}, r"append: and split.time with split.fractions exclude each other"),
        ({"column": "a", "key": "id"}, r"append: and split.key beside split.column exclude each other"),
        ({"time": "a", "boundaries": {"test": "2026-01-01"}, "key": "id"}, r"append: and split.key beside split.time"),
    ],
)
def test_splits_that_look_at_old_rows_cannot_be_extended(project: Project, split: dict, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        project.shard(split=split)


def test_documents_that_are_not_divided_are_said(tmp_path: Path) -> None:
    project = Project(tmp_path)
    for number in range(12):
        (project.days / f"{number}.txt").write_text("a\n" * (2 if number else 40))
    split = {"by": "position", "fractions": {"train": 0.5, "test": 0.5}, "gap": 1}
    source = {"uri": "days/*.txt", "format": "text", "pieces": {"lines": 1}}
    section = {"split": split, "target_size_bytes": 2048}
    spec = write_project(tmp_path, {"data": {"source": source}, "shards": section})
    run = open_run(read_spec(spec), recorded=False)
    dataset = stage._make(run, None)
    assert dataset.documents == {"all": 12, "undivided": 11}
    assert stage.find_dataset(run) == dataset
    assert (
        "; 11 of 12 documents are too short to be divided, and are in one split each"
        in stage._told(run, dataset, None).sentence
    )
