"""The paired bootstrap draws what it says, whatever the number of threads."""

from __future__ import annotations

import os

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from tasks.evidence import kernels
from tasks.evidence.intervals import bca, percentile
from tasks.evidence.resampling import resampled_auc, resampled_means, resampled_ratios

DRAW = np.random.default_rng(7)
SIZES = (1, 2, 300, kernels.BLOCK, kernels.BLOCK + 1, 3 * kernels.BLOCK - 5)


@pytest.mark.parametrize("rows", SIZES)
def test_every_row_is_drawn_as_often_as_any_other(rows: int) -> None:
    weights, totals = np.zeros(rows, np.uint8), np.zeros(rows)
    blocks = -(-rows // kernels.BLOCK)
    sizes = np.full(blocks, kernels.BLOCK)
    sizes[-1] = rows - kernels.BLOCK * (blocks - 1)
    draws = max(20, 40_000 // rows)
    shares = DRAW.multinomial(rows, sizes / rows, size=draws)
    for resample in range(draws):
        kernels._draw(shares, resample, 3, weights)
        assert weights.sum(dtype=int) == rows
        totals += weights
    # Chi-square of equal shares, within five standard deviations.
    chi = float(((totals - draws) ** 2 / (draws * (1 - 1 / rows) if rows > 1 else 1)).sum())
    assert abs(chi - (rows if rows > 1 else 0)) <= 5 * (2 * rows) ** 0.5


@pytest.mark.parametrize("rows", SIZES)
def test_sums_are_of_the_rows_that_are_drawn(rows: int) -> None:
    values = DRAW.normal(size=rows)
    means = resampled_means(values, 7, 3)
    blocks = -(-rows // kernels.BLOCK)
    sizes = np.full(blocks, kernels.BLOCK)
    sizes[-1] = rows - kernels.BLOCK * (blocks - 1)
    shares = np.random.default_rng(3).multinomial(rows, sizes / rows, size=7)
    weights = np.zeros(rows, np.uint8)
    for resample in range(7):
        kernels._draw(shares, resample, 3, weights)
        assert means[resample] == pytest.approx(weights @ values / rows)


def test_means_spread_as_the_theory_says() -> None:
    values = DRAW.exponential(size=5_000)
    means = resampled_means(values, 4_000, 1)
    assert means.mean() == pytest.approx(values.mean(), abs=4 * values.std() / 5_000**0.5 / 4_000**0.5)
    assert means.std() == pytest.approx(values.std() / 5_000**0.5, rel=0.05)


def test_the_number_of_threads_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    values = DRAW.normal(size=5_000)
    many = resampled_means(values, 100, 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert np.array_equal(many, resampled_means(values, 100, 1))
    assert not np.array_equal(many, resampled_means(values, 100, 2))


def test_whole_units_are_drawn() -> None:
    sizes = DRAW.integers(1, 9, size=400).astype(float)
    ratios = resampled_ratios(3 * sizes, sizes, 50, 1)
    assert ratios == pytest.approx(np.full(50, 3))  # each unit brings its sum and its rows together


def test_areas_are_those_of_the_drawn_rows() -> None:
    truth = DRAW.random(900) < 0.3
    scores = np.stack([np.round(truth + DRAW.normal(size=900), 1), truth + DRAW.normal(size=900)])  # ties, and none
    areas = resampled_auc(scores, truth, 5, 3)
    weights = np.zeros(900, np.uint8)
    for resample in range(5):
        kernels._draw(np.full((5, 1), 900), resample, 3, weights)
        expected = [roc_auc_score(truth, one, sample_weight=weights) for one in scores]
        assert areas[resample] == pytest.approx(expected)


def test_one_class_alone_has_no_area() -> None:
    assert np.isnan(resampled_auc(np.zeros((1, 3)), np.array([True] * 3), 4, 1)).all()


def test_bca_covers_a_skewed_mean_better() -> None:
    missed = {"percentile": 0, "bca": 0}
    for trial in range(400):
        values = np.random.default_rng(trial).exponential(size=30)
        means = resampled_means(values, 999, trial)
        found = {"percentile": percentile(means, 0.9), "bca": bca(means, values.mean(), values, 0.9)}
        for name, interval in found.items():
            missed[name] += not interval.low <= 1 <= interval.high
    assert missed["bca"] < missed["percentile"]
    assert missed["bca"] / 400 < 0.16  # 0.1 asked for; 30 rows are few


def test_equal_values_have_an_interval_of_one_point() -> None:
    found = bca(np.full(50, 0.25), 0.25, np.full(9, 0.25), 0.95)
    assert (found.low, found.high) == (0.25, 0.25)
    with pytest.raises(ValueError, match="no resample"):
        percentile(np.array([np.nan]), 0.95)
