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


THREE_SHARES = [
    (10, 0, "0000000012"),
    (20, 0, "0" * 16 + "1122"),
    (20, 1, "0" * 15 + ".1.22"),
    (20, 2, "s" * 20),  # validation would have none
    (30, 2, "0" * 22 + "..1..222"),
    (5, 0, "sssss"),
    (1, 0, "s"),
    (1, 3, "s"),
]


@pytest.mark.parametrize(
    ("pieces", "gap", "shares", "expected"),
    [
        *((*case[:2], (0.8, 0.1, 0.1), case[2]) for case in THREE_SHARES),
        (2, 0, (0.8, 0.2), "ss"),  # the last split would have nothing
        (3, 0, (0.8, 0.2), "001"),
    ],
)
def test_each_document_is_cut_at_its_shares(pieces: int, gap: int, shares: tuple[float, ...], expected: str) -> None:
    """The split of each piece as one letter; "." is left out, "s" for short."""
    found = by_position(np.arange(pieces), np.full(pieces, pieces), shares, gap, np.full(pieces, 9, np.int16))
    assert "".join({-1: ".", 9: "s"}.get(one, "012"[one % 3]) for one in found.tolist()) == expected


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


LINES = {"a": b"1\n" * 20, "b": b"2\n" * 20}
SHORT = r"2 of 2 documents are too short to be cut"
REFUSED: list[Any] = [
    # data, the gap, what the sentence says, what the remedy says
    (LINES, 30, rf"shards\.split\.gap leaves no rows for '\w+' \(.*\): {SHORT} with it\.", "Change shards.split.gap"),
    ({name: text[:4] for name, text in LINES.items()}, 30, rf"shards\.split leaves no rows for .*: {SHORT}", ""),
    ([pa.table({"id": [1]})], 0, r"shards\.split\.by: the data has no column 'document'; it has id", ""),
    (
        [pa.table({"document": ["a"], "position": ["0"], "pieces": [1]})], 0,
        r"shards\.split\.by: the column position is string, not whole numbers", "",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("data", "gap", "sentence", "remedy"), REFUSED)
def test_what_cannot_be_split_by_position_is_refused(
    data: Any, gap: int, sentence: str, remedy: str, tmp_path: Path
) -> None:
    pieces = {"pieces": {"lines": 1}} if gap else {}
    with pytest.raises(UsageError, match=sentence) as caught:
        Shards(tmp_path, data, split={**BY, "gap": gap}, required=["train", "val", "test"], **pieces)
    assert remedy in str(caught.value.remedy)
