"""The stage's line, its page in Prefect and the run's page say where each raw row went."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from data_contracts.handoffs import Dataset
from infra.store import Store
from tasks.pages.facts import Facts
from tasks.pages.run_page import data_section
from tasks.stages import shard as stage
from tasks.stages.artifacts import _facts
from tests.support.nights import Nights, table

pytestmark = pytest.mark.usefixtures("here")
FRACTIONS = {"train": 0.7, "val": 0.1, "test": 0.2}
SKEWED = {"split": {"key": "shop", "fractions": FRACTIONS}}
DAY = datetime(2026, 1, 2)


def shops(sizes: list[int]) -> pa.Table:
    """Rows of shops, each with its own number of rows."""
    names = [f"shop {number}" for number, rows in enumerate(sizes) for _ in range(rows)]
    return table(0, len(names), shop=pa.array(names))


def told(nights: Nights, dataset: Dataset) -> list[str]:
    """The stage's line, its page in Prefect, and the run's page."""
    page = "\n".join(_facts(nights.run, dataset))
    return [nights.sentence(dataset), page, data_section(Facts(nights.run, None, dataset=dataset))]


def test_shares_are_said_and_skewed_keys_are_warned_about(nights: Nights) -> None:
    nights.put("1.parquet", shops([1000, 900, 800, 40, 40, 30, 30, 20, 20, 10] * 2))
    dataset = nights.shard(**SKEWED)
    for text in told(nights, dataset):
        for split, share in FRACTIONS.items():
            assert f"({dataset.rows(split) / 5780:.1%}, asked {100 * share:.3g}%)" in text
        assert "5,780" in text
        assert "% were asked for, because rows with the same shop stay together" in text
        assert "warning: " in text


@pytest.mark.parametrize(
    ("rows", "split", "warned"),
    [
        (shops([1] * 344), SKEWED["split"], []),  # by chance
        (table(0, 20), {"key": "id", "fractions": {"train": 0.5, "val": 1e-6, "test": 0.499999}},
         ["warning: val has no rows, but 0.0001% were asked for"]),
    ],
)  # fmt: skip
def test_an_empty_split_is_warned_about_and_chance_is_not(
    rows: pa.Table, split: dict[str, Any], warned: list[str], nights: Nights
) -> None:
    nights.put("1.parquet", rows)
    assert re.findall(r"warning: [^;(]*asked for", nights.sentence(nights.shard(split=split))) == warned


def test_every_row_that_is_in_no_split_has_a_cause(tmp_path: Path) -> None:
    (tmp_path / "labels_of_a_test.py").write_text(
        "def build(batch):\n    return batch.filter(batch['label'].is_valid())\n"
    )
    labels = pa.array([None if number % 10 == 4 else 1 for number in range(400)])
    times = pa.array([DAY.replace(day=1 + number % 4) for number in range(400)])
    nights = Nights(tmp_path, window={"column": "at"})
    nights.window = "2026-01-01..2026-01-04"
    nights.put("1.parquet", table(0, 400, label=labels, at=times))
    split = {"time": "at", "boundaries": {"test": "2026-01-03T00:00:00"}, "gap_s": 86400}
    dataset = nights.shard(split=split, transform="labels_of_a_test.build", append=False)
    kept = dataset.rows("train") + dataset.rows("test")
    assert kept == 160
    for text in told(nights, dataset):
        for rows, why in ((100, "outside the window"), (100, "in a gap"), (40, "left out by shards.transform")):
            assert why in text
            assert str(rows) in text
        assert "400" in text


@pytest.mark.parametrize(
    ("build", "said"),
    [
        ("batch.slice(1)", " of 80 rows; 4 left out by shards.transform"),
        ("pa.concat_batches([batch, batch])", "shards.transform made 80 rows more than it got"),
    ],
)
def test_an_appended_dataset_counts_all_rows_that_a_transform_drops_or_makes(
    build: str, said: str, nights: Nights, tmp_path: Path
) -> None:
    (tmp_path / "counts_of_a_test.py").write_text(f"import pyarrow as pa\n\ndef build(batch):\n    return {build}\n")
    for number in range(2):
        nights.put(f"{number}.csv", table(100 * number, a=1))
        dataset = nights.shard(transform="counts_of_a_test.build")
    assert said in nights.sentence(dataset)


def test_a_dataset_of_an_earlier_version_is_shown_without_what_it_did_not_record(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.put("1.csv", table(0, a=1))
    dataset, manifest = nights.shard(), Store.manifest

    def without(store: Store, ref: Any) -> Any:
        read = manifest(store, ref)
        for name in ("row_counts", "types", "lacking"):
            read.provenance.pop(name, None)
        return read

    monkeypatch.setattr(Store, "manifest", without)
    line, *_ = told(nights, dataset)
    assert line.endswith("asked 40%) rows")
    nights.put("2.csv", table(100, a=1))
    second = nights.shard()
    why = "all files were sharded again, because the types of the files that were sharded are not recorded"
    monkeypatch.undo()
    assert why in stage._told(nights.run, second, None).sentence
