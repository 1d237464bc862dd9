"""Drift between two profiles: what is an alarm, what is negligible, what is chance, and the figures in textbooks."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from data_contracts.profile.drift import (
    Counts,
    compared,
    distance,
    grouped,
    jensen_shannon,
    lumped,
    stability_index,
)
from data_contracts.profile.profile import profile_of
from data_contracts.profile.sketches import edges
from data_contracts.records import Bins, DriftReport, Profile

ROWS = 20_000


def profile(**columns: object) -> Profile:
    table = pa.table(columns)
    return profile_of(table.to_batches(), table.schema, ["secret"])


DRAW = np.random.default_rng(7)
NORMAL = DRAW.normal(size=ROWS)
CASES = {
    "another sample": (NORMAL, DRAW.normal(size=ROWS), "same"),
    "a shift": (NORMAL, DRAW.normal(0.2, 1, ROWS), "warning"),
    "a small shift of many rows": (DRAW.normal(size=20 * ROWS), DRAW.normal(0.03, 1, 20 * ROWS), "negligible"),
    "a large shift": (NORMAL, DRAW.normal(1, 1, ROWS), "critical"),
    "far from zero": (NORMAL + 1e9, NORMAL + 1e9 + 0.2, "warning"),
    "a wider spread": (NORMAL, DRAW.normal(0, 1.3, ROWS), "warning"),
    "few rows": (NORMAL[:100], DRAW.normal(0.2, 1, 100), "same"),
    "missing values": (NORMAL, np.where(DRAW.random(ROWS) < 0.05, np.nan, NORMAL), "warning"),
    "row ids": (np.arange(ROWS), np.arange(ROWS) + ROWS, "same"),
    "times": (np.arange(ROWS).astype("M8[s]"), (np.arange(ROWS) + ROWS).astype("M8[s]"), "same"),
    "classes": (np.arange(ROWS) % 2, (np.arange(ROWS) % 3 == 0).astype(int), "warning"),
    "a new class": (np.arange(ROWS) % 3, np.where(np.arange(ROWS) % 100 == 7, 3, np.arange(ROWS) % 3), "warning"),
    "a flag": (NORMAL > 0, NORMAL > 1, "critical"),
    "a new text": (["a", "b"] * 5000, ["a", "b"] * 4950 + ["c"] * 100, "warning"),
    "texts, in another order": (["a", "b"] * 5000, ["b"] * 5000 + ["a"] * 5000, "same"),
    "many texts": (
        [f"u{one}" for one in range(5000)] * 2,
        [f"u{one}" for one in range(5000)] + ["u1"] * 5000,
        "critical",
    ),
    "lengths": ([f"{one:05}" for one in range(ROWS)], [f"{one:09}" for one in range(ROWS)], "critical"),
    "another kind": (NORMAL, ["a"] * ROWS, "critical"),
    "nothing then": (pa.nulls(ROWS, pa.float64()), NORMAL, "critical"),
}


def test_a_column_that_became_sensitive_did_not_change_its_kind() -> None:
    hidden, plain = profile(secret=NORMAL), profile(x=NORMAL)
    plain = plain.model_copy(update={"columns": [plain.columns[0].model_copy(update={"name": "secret"})]})
    for then, now in ((hidden, plain), (plain, hidden)):
        assert compared(then, now, "before").columns[0].verdict == "same"


def test_a_new_large_number_is_seen_beside_its_neighbours() -> None:
    then, now = np.full(10_000, 1_000_000), np.where(np.arange(10_000) % 50 == 0, 1_000_001, 1_000_000)
    [column] = compared(profile(x=then), profile(x=now), "before").columns
    assert (column.verdict, column.new) == ("warning", ["1000001"])


def test_the_edges_of_the_widest_bins_are_values() -> None:
    for key in (-1, 0):
        assert all(not math.isnan(edge) for edge in edges(Bins(shift=63, keys=[key], counts=[1]), key))


@pytest.mark.parametrize("case", CASES)
def test_a_column_moved_or_not(case: str) -> None:
    then, now, wanted = CASES[case]
    report = compared(profile(x=then), profile(x=now), "before")
    assert report.columns[0].verdict == wanted, report.sentence


def test_what_is_told_of_columns() -> None:
    then = profile(a=NORMAL, b=NORMAL, gone=NORMAL, secret=NORMAL, c=["x"] * ROWS)
    now = profile(a=NORMAL + 1, b=NORMAL, new=NORMAL, secret=NORMAL + 9, c=["x", "y<&"] * (ROWS // 2))
    report = compared(then, now, "before", ignore=["b"])
    said = {one.column: (one.verdict, one.sentence) for one in report.columns}
    assert said["gone"] == ("critical", "gone is gone")
    assert said["secret"] == ("same", "secret: no change beyond chance")
    assert said["a"][1].startswith("a: its distribution moved: KS 0.3")
    assert ", PSI " in said["a"][1]
    assert "; mean 0.9936 (was -0.006443)" in said["a"][1]
    assert said["c"][1].endswith("50.00% of the values are new, such as 'y<&'")
    assert set(said) == {"a", "gone", "secret", "c"}
    assert report.sentence.startswith("3 of 4 columns moved against before: ")
    assert [one.column for one in compared(then, now, "before", only=["b"]).columns] == ["b"]
    assert DriftReport.model_validate(report.to_json()) == report


def test_the_measures_are_those_of_the_textbooks() -> None:
    counts = Counts([500, 300, 200], [300, 300, 400])
    shares = [(0.5, 0.3), (0.3, 0.3), (0.2, 0.4)]
    plain = sum((now - then) * math.log(now / then) for then, now in shares)
    assert stability_index(counts) == pytest.approx(plain - 2 * 2 / 1000, abs=1e-3)
    middle = [(one + two) / 2 for one, two in shares]
    entropy = [
        sum(share * math.log2(share / mid) for share, mid in zip(side, middle, strict=True))
        for side in zip(*shares, strict=True)
    ]
    assert jensen_shannon(counts) == pytest.approx(sum(entropy) / 2)
    assert distance(counts) == pytest.approx(0.2)


def test_groups_lose_no_rows_and_are_large_enough() -> None:
    for seed in range(50):
        draw = np.random.default_rng(seed)
        counts = Counts(draw.poisson(3, 400).tolist(), (draw.poisson(2, 400) * draw.integers(0, 2, 400)).tolist())
        for made in (grouped(counts), lumped(counts)):
            assert made.sizes == counts.sizes
        assert min(map(sum, zip(*grouped(counts), strict=True))) >= sum(counts.sizes) / 40


@pytest.mark.parametrize("change", [{"counts": [1]}, {"counts": [0, 1]}, {"shift": -1}, {"shift": 64}])
def test_bins_that_nobody_counted_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        Bins.model_validate({"shift": 0, "keys": [1, 2], "counts": [1, 1], **change})
