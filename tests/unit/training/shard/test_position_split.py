"""A split by position: each document's first pieces train, its last test; short documents stay whole."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import SplitSpec
from infra.contract.quarantine import LeftOut
from tests.support.sharding import Shards
from training.shard import units
from training.shard.splitter import Documents, Splitter, by_position

BY = {"by": "position", "fractions": {"train": 0.8, "val": 0.1, "test": 0.1}}


def split_of(pieces: int, gap: int = 0, shares: tuple[float, ...] = (0.8, 0.1, 0.1)) -> str:
    """The split of each piece of a document as one letter; "." is left out, "s" for short."""
    found = by_position(np.arange(pieces), np.full(pieces, pieces), shares, gap, np.full(pieces, 9, np.int16))
    return "".join({-1: ".", 9: "s"}.get(one, "012"[one % 3]) for one in found.tolist())


@pytest.mark.parametrize(
    ("pieces", "gap", "expected"),
    [
        (10, 0, "0000000012"),
        (20, 0, "0" * 16 + "1122"),
        (20, 1, "0" * 15 + ".1.22"),
        (20, 2, "s" * 20),  # validation would have none
        (30, 2, "0" * 22 + "..1..222"),
        (5, 0, "sssss"),
        (1, 0, "s"),
        (1, 3, "s"),
    ],
)
def test_each_document_is_cut_at_its_shares(pieces: int, gap: int, expected: str) -> None:
    assert split_of(pieces, gap) == expected


def test_a_document_whose_last_split_would_have_nothing_stays_whole() -> None:
    assert split_of(2, shares=(0.8, 0.2)) == "ss"
    assert split_of(3, shares=(0.8, 0.2)) == "001"


def documents() -> dict[str, bytes]:
    long = {f"long{n}": b"".join(b"%03d %05d\n" % (n, at) for at in range(40 + n)) for n in range(3)}
    return {**long, **{f"short{n}": b"%05d\n" % n * 3 for n in range(40)}}


def sides(shards: Shards) -> dict[str, dict[str, list[int]]]:
    """Positions by document and split."""
    found: dict[str, dict[str, list[int]]] = defaultdict(dict)
    for split in shards.sharded.splits:
        for row in shards.read(split).to_pylist():
            found[row["document"]].setdefault(split, []).append(row["position"])
    return {name: {split: sorted(rows) for split, rows in one.items()} for name, one in found.items()}


def made(folder: Path, **options: Any) -> Shards:
    return Shards(folder, documents(), pieces={"lines": 1}, split={**BY, "gap": 2}, **options)


def test_long_documents_are_cut_and_short_ones_stay_whole(tmp_path: Path) -> None:
    shards = made(tmp_path)
    found = sides(shards)
    for number in range(3):
        pieces = 40 + number
        first, second = round(0.8 * pieces), round(0.9 * pieces)
        assert found[f"long{number}"] == {
            "train": list(range(first - 2)), "val": list(range(first, second - 2)), "test": list(range(second, pieces)),
        }  # fmt: skip
    assert shards.sharded.dropped_rows == {"gap": 3 * 4}
    assert shards.sharded.documents == Documents(all=43, short=40, by_gap=0)
    short = [found[f"short{number}"] for number in range(40)]
    assert all(list(one.values()) == [[0, 1, 2]] for one in short)
    assert {split for one in short for split in one} == {"train", "val", "test"}


def test_processes_and_pieces_of_work_make_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "UNIT_FILES", 5)
    one = made(tmp_path / "one", workers=1)
    monkeypatch.setattr(units, "TASK_BYTES", 1)
    two = made(tmp_path / "two", workers=2)
    assert one.digests == two.digests
    assert one.sharded.documents == two.sharded.documents == Documents(all=43, short=40, by_gap=0)


def test_rows_that_are_set_aside_are_left_out_and_the_others_stay_where_they_are(tmp_path: Path) -> None:
    numbers = np.array([1, 41], np.int64)  # the second rows of the first two documents
    left = made(tmp_path / "a", left_out=lambda most_rows: LeftOut(numbers, np.array([0, 1]), np.array([1, 1])))
    whole = sides(made(tmp_path / "b"))
    for name in ("long0", "long1"):
        whole[name]["train"].remove(1)
    assert sides(left) == whole
    assert left.sharded.dropped_rows == {"gap": 12, "quarantined": 2}


def test_a_document_counts_once_however_it_is_read_and_whatever_rows_it_lacks() -> None:
    documents = [("a", [0, 1, 2, 3]), ("b", [1, 2, 3]), ("b", [1, 3]), ("c", [0])]
    rows = [{"document": name, "position": at, "pieces": 4} for name, positions in documents for at in positions]
    table = pa.Table.from_pylist(rows)
    spec = SplitSpec.model_validate({"by": "position", "fractions": {"train": 0.5, "test": 0.5}, "gap": 2})
    for step in range(1, len(rows) + 1):
        splitter = Splitter(spec, table.schema)
        for at in range(0, len(rows), step):
            splitter.assign(table.slice(at, step), (0, at))
        assert splitter.notes.documents == Documents(all=4, short=4, by_gap=4), step


def test_a_gap_that_leaves_a_split_empty_is_named(tmp_path: Path) -> None:
    lines = {"a": b"1\n" * 20, "b": b"2\n" * 20}
    shards = {"pieces": {"lines": 1}, "required": ["train", "val", "test"]}
    sentence = r"shards\.split\.gap leaves no rows for '\w+' \(.*\): 2 of 2 documents are too short to be cut with it\."
    with pytest.raises(UsageError, match=sentence) as caught:
        Shards(tmp_path / "a", lines, split={**BY, "gap": 30}, **shards)
    assert "Change shards.split.gap" in str(caught.value.remedy)
    with pytest.raises(
        UsageError, match=r"shards\.split leaves no rows for .*: 2 of 2 documents are too short to be cut"
    ):
        Shards(tmp_path / "b", {name: text[:4] for name, text in lines.items()}, split={**BY, "gap": 30}, **shards)


def test_data_without_documents_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"shards\.split\.by: the data has no column 'document'; it has id"):
        Shards(tmp_path / "a", [pa.table({"id": [1]})], split=BY)
    table = pa.table({"document": ["a"], "position": ["0"], "pieces": [1]})
    with pytest.raises(UsageError, match=r"shards\.split\.by: the column position is string, not whole numbers"):
        Shards(tmp_path / "b", [table], split=BY)
