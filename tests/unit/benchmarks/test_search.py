"""The simulations of searches: their gate decides as ours, a budget can be exceeded, and the nights are as said."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from infra.store import open_store
from tasks.evidence.decision import GateQuestion, Spent, decide
from tasks.evidence.significance import PairedCounts


@pytest.fixture
def search(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    import search

    return search


def test_slots_are_busy_until_the_last_trial_begins(search: ModuleType, tmp_path: Path) -> None:
    of_search, of_batches = search.busy(open_store(str(tmp_path)), 130)
    assert 0.95 < of_search < 1
    assert of_batches < 0.5


@pytest.mark.parametrize(("stop_s", "is_kept"), [(12.0, True), (600.0, False)])
def test_a_budget_is_kept_by_trials_that_end_in_time_and_by_no_others(
    search: ModuleType, tmp_path: Path, stop_s: float, is_kept: bool
) -> None:
    assert (search.overruns(tmp_path, 5, stop_s) == 0) == is_kept


def test_a_killed_trial_is_counted_once(search: ModuleType, tmp_path: Path) -> None:
    kills = 0
    for seed in range(5):
        history = search.History(store := open_store(str(tmp_path / str(seed))), seed, 12.0)
        history.carry_out()
        search.settle_others(store, history.period, history.ledger)
        assert history.ledger.balance().spent == pytest.approx(history.used, abs=1e-6)
        kills += history.kills
    assert kills


@pytest.mark.parametrize("won", range(60, 100, 5))
@pytest.mark.parametrize("start", [0, 300])
def test_the_gate_of_the_simulation_decides_as_ours(search: ModuleType, won: int, start: int) -> None:
    found = np.zeros((2, 2, 20, 1), np.int64)
    found[1, :, 7, 0] = won, 30
    ours, reverse = PairedCounts(won, 30, search.ROWS), PairedCounts(30, won, search.ROWS)
    [decision] = decide([GateQuestion(ours, reverse, 0.0, 0.95, Spent(20 * start + 19))])
    promoted = search.promotions(np.random.default_rng(0), search.evidence, found, np.array([7]), start)
    assert bool(promoted) == (decision.verdict == "better")


def test_no_candidate_is_better_on_rows_that_did_not_choose_it(search: ModuleType) -> None:
    found = search.nightly(np.random.default_rng(0), search.ROWS, 2_000, gain=0.0, fresh=5)
    validation, test = found[:, 0] - found[:, 1]
    chosen, nights = np.argmax(validation, axis=0), np.arange(2_000)
    error = np.sqrt(search.ROWS * search.DISAGREE / 2_000)
    bias = test[0].mean()  # all nights have the same champion, which is right on more or fewer rows than expected
    assert abs(test[chosen, nights].mean() - bias) < 5 * error
    assert validation[chosen, nights].mean() > 100 * error


def test_a_gain_is_as_large_as_said(search: ModuleType) -> None:
    found = search.nightly(np.random.default_rng(0), 10_000, 2_000, gain=0.01, fresh=20)
    gains = (found[:, 0] - found[:, 1]).mean(axis=(0, 2)) / 10_000
    assert gains[0] - gains[1:].mean() == pytest.approx(0.01, rel=0.05)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_searchers_try_values_of_the_grids_space(search: ModuleType) -> None:
    values = {"a": [1, 10, 100], "b": [0.1, 0.2]}
    grid = search.Grid("g", values, np.arange(6.0).reshape(3, 2), np.ones((3, 2)))
    assert grid.place({"train.a": 40.0, "train.b": 0.13}) == (2, 0)
    for kind in search.SEARCHERS.values():
        tried = list(islice(kind(grid, 0), 12))
        assert all(1 <= one["train.a"] <= 100 and 0.1 <= one["train.b"] <= 0.2 for one in tried)
        assert len({one["train.a"] for one in tried}) == 12
    # The best is the last of six points that cost the same: it takes three trials, half of what the grid costs.
    tries = iter([{"train.a": a, "train.b": b} for a, b in ((1, 0.1), (10, 0.2), (100, 0.2))])
    assert search.searched(grid, tries) == (0.0, 0.5)
