"""A training on two datasets of one store, mixed by weight: what a module gets to see, and what is written down."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from infra.store import open_store
from tests.support.tiny import SPEC, answer, succeed, trainwright, write_project

pytestmark = pytest.mark.warm

OTHER_IDS = 100_000
# 3 : 1 in each thousand.
WEIGHTS = {"this": 3, "books": 1}

# Written beside the store by rank 0, which is the only one: the ids of each step.
SEEING = """\
import json
import os

from net import Net


class Seeing(Net):
    def __init__(self, seen: str):
        super().__init__()
        self.seen = seen

    def training_step(self, batch, batch_idx):
        if self.training:  # and not for the loss on the held batch
            with open(self.seen, "a") as file:
                file.write(json.dumps(batch["id"].tolist()) + os.linesep)
        return super().training_step((batch["x"], batch["label"]), batch_idx)

    def predict_step(self, batch, batch_idx):
        return self(batch["x"])
"""


def trained(folder: Path, name: str, **train: Any) -> Path:
    model = {"class_path": "seeing.Seeing", "init_args": {"seen": str(folder.parent / f"{name}.seen")}}
    section = {
        **SPEC["train"],
        "lightning": {"model": model, "trainer": {"max_epochs": 2}},
        "batch": {"id": "id", "x": ["a", "b", "c"], "label": "label"},
        **train,
    }
    return write_project(folder, {"name": name, "store": "../store", "train": section})


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("mixture")
    other = trained(root / "books", "books")
    spec = trained(root / "tiny", "tiny", loader={"mixture": {"datasets": {"books": "books"}, "weights": WEIGHTS}})
    for folder in (root / "books", root / "tiny"):
        (folder / "seeing.py").write_text(SEEING)
    lines = (root / "books" / "rows.csv").read_text().splitlines()
    moved = [lines[0], *(f"{OTHER_IDS + number},{line.partition(',')[2]}" for number, line in enumerate(lines[1:481]))]
    (root / "books" / "rows.csv").write_text("\n".join(moved) + "\n")
    (root / "tiny" / "rows.csv").write_text("\n".join(lines[:481]) + "\n")
    return spec, other


def test_a_dataset_that_is_not_there_yet_is_named_with_what_to_do(projects: tuple[Path, Path]) -> None:
    done = trainwright("validate", projects[0])
    assert done.returncode == 2
    assert "train.loader.mixture.datasets.books: this store has no dataset books. Run the pipeline books" in done.stderr


@pytest.mark.slow
def test_each_dataset_comes_by_its_weight_and_whole_in_each_of_its_passes(projects: tuple[Path, Path]) -> None:
    spec, other = projects
    assert trainwright("run", other).returncode in (0, 4)
    assert trainwright("validate", spec).returncode == 0
    dataset = answer(trainwright("shard", spec, "--json"))["handoff"]
    checkpoint = answer(succeed("train", spec, "--json"))["handoff"]
    seen = [
        number for line in (spec.parent.parent / "tiny.seen").read_text().splitlines() for number in json.loads(line)
    ]
    store = open_store(str(spec.parent.parent / "store"), {}, create=False)
    parents = [parent["uri"] for parent in store.manifest(checkpoint["ref"]["uri"]).provenance["parents"]]
    [books_uri] = [uri for uri in parents if uri.startswith("datasets/") and uri != dataset["ref"]["uri"]]
    rows = [sum(shard["rows"] for shard in dataset["splits"]["train"])]
    books = json.loads(store.read(f"{books_uri}/handoff.json"))
    rows.append(sum(shard["rows"] for shard in books["splits"]["train"]))
    assert len(seen) == 2 * (sum(rows) // 32 * 32)
    assert Counter(number >= OTHER_IDS for number in seen[:1000]) == {False: 750, True: 250}
    first: list[set[int]] = []
    for is_other, count in enumerate(rows):
        part = [number for number in seen if (number >= OTHER_IDS) == is_other]
        passes = [part[at : at + count] for at in range(0, len(part), count)]
        assert [len(set(one)) for one in passes] == [len(one) for one in passes]
        first.append(set(passes[0]))
        assert all(set(one) <= first[-1] for one in passes[1:])
    assert len(first[0]) == rows[0]
    for verb in ("verify", "evaluate"):
        succeed(verb, spec)
    # A dataset that is named by its address is the one that its pipeline's name stood for: the same training.
    again = succeed("train", spec, "--set", f"train.loader.mixture.datasets.books={books_uri}")
    assert "reused" in again.stderr + again.stdout


def test_a_dataset_whose_columns_differ_is_refused_before_anything_starts(projects: tuple[Path, Path]) -> None:
    spec, other = projects
    text = (other.parent / "rows.csv").read_text().replace("label", "labels", 1)
    (other.parent / "rows.csv").write_text(text)
    suite = (other.parent / "suite.json").read_text().replace('"label"', '"labels"')
    (other.parent / "suite.json").write_text(suite)
    batch = "train.batch={id: id, x: [a, b, c], label: labels}"
    assert trainwright("validate", other, "--set", batch).returncode == 0
    uri = answer(trainwright("shard", other, "--set", batch, "--json"))["handoff"]["ref"]["uri"]
    for stage in ("validate", "shard"):  # a mixture is of the training alone
        assert trainwright(stage, spec, "--set", "train.loader={}").returncode == 0
    done = trainwright("train", spec, "--set", f"train.loader.mixture.datasets.books={uri}")
    assert done.returncode == 2
    assert "has column 'label' as no column, but this run's dataset as int64" in done.stderr
