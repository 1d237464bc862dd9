"""Near duplicates: planted pairs are found as often as stated, and what is found is as similar as stated."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from data_contracts.messages.raw_data import SCORED, TRAINED, Side
from data_contracts.pipeline_spec import NearSpec
from tests.support.sealed_rows import compared, sealed
from training.contamination.near import _Texts, find_near

WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in ("", "n", "r", "st")]


def text(draw: random.Random, words: int = 60) -> str:
    return " ".join(draw.choices(WORDS, k=words))


def shingles(one: str, size: int = 5) -> set[str]:
    return {one[i : i + size] for i in range(max(1, len(one) - size + 1))}


def jaccard(a: str, b: str) -> float:
    return len(shingles(a) & shingles(b)) / len(shingles(a) | shingles(b))


def changed(draw: random.Random, one: str, words: int) -> str:
    parts = one.split()
    for at in draw.sample(range(len(parts)), words):
        parts[at] = draw.choice(WORDS)
    return " ".join(parts)


def near_of(root: Path, train: list[str | None], test: list[str | None], **asked):
    kind = pa.string()
    tables = {name: pa.table({"text": pa.array(one, kind)}) for name, one in (("train", train), ("test", test))}
    dataset = sealed(root, "texts", tables, 500)
    sides = [
        Side(name=name, dataset=dataset, split=name, use=use, own=True)
        for name, use in (("train", TRAINED), ("test", SCORED))
    ]
    return find_near(compared(root, sides, ["text"]), NearSpec(column="text", **asked), root)


def test_planted_pairs_are_found_and_none_is_invented(tmp_path: Path) -> None:
    draw = random.Random(5)
    train = [text(draw) for _ in range(3000)]
    test = [text(draw) for _ in range(700)] + [changed(draw, train[i], 1 + i % 9) for i in range(300)]
    near = near_of(tmp_path, train, test)
    planted = {700 + i: jaccard(train[i], test[700 + i]) for i in range(300)}
    found = set(near.mask(0).nonzero()[0].tolist())
    above = {i for i in range(300) if planted[700 + i] >= 0.8}
    assert len(above) > 100
    assert len(found & above) >= 0.95 * len(above)
    assert not found - above  # all rows but the planted ones are far apart
    [overlap] = near.overlaps()
    assert (overlap.kind, overlap.earlier, overlap.later) == ("near", "train", "test")
    assert overlap.earlier_rows == overlap.later_rows == len(found)
    assert [later.row for later, _ in overlap.examples] == [(700 + i) % 500 for i in sorted(found)[:10]]


@pytest.mark.parametrize(
    ("train", "test", "found"),
    [
        (["abc", "xyz"], ["abc"], [True, False]),  # shorter than a shingle
        (["", None, "abcdefgh"], ["", None], [False, False, False]),  # nothing is not near nothing
        (["aaaaaaaa"], ["aaaaaaaaaaaaaa"], [True]),  # a set counts a shingle once
        (["naïve café \U0001f600 " * 3], ["naïve café \U0001f600 " * 3], [True]),
        (["abc"], ["abc\0\0"], [False]),  # filled up, they would be the same
    ],
)
def test_edges(tmp_path: Path, train, test, found) -> None:
    assert near_of(tmp_path, train, test).mask(0).tolist() == found


def test_many_equal_texts_take_time_in_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two texts, each often on both sides, and near each other: one pair of texts is compared in each band."""
    compared_texts: list[tuple[int, int]] = []
    similar = _Texts.similar

    def counted(texts: _Texts, row: int, other: int, similarity: float) -> bool:
        compared_texts.append((row, other))
        return similar(texts, row, other, similarity)

    monkeypatch.setattr(_Texts, "similar", counted)
    one, other = "a text that is here and there, time and again", "a text that is here and there, time and again!"
    near = near_of(tmp_path, [one, other] * 1500 + ["else"], [other, one] * 100, similarity=0.9)
    assert near.mask(0).tolist() == [True] * 3000 + [False]
    assert len(compared_texts) == 1
    [overlap] = near.overlaps()
    assert (overlap.earlier_rows, overlap.later_rows) == (3000, 200)
    assert [later.row for later, _ in overlap.examples] == list(range(10))
    assert {earlier.row for _, earlier in overlap.examples} == {0}
