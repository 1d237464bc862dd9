"""The simulation of effective training time: its engine agrees with a formula, and our policy decides in it."""

from __future__ import annotations

import random
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def effective(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    import effective

    return effective


def test_a_simulated_loss_is_that_of_the_formula(effective: ModuleType) -> None:
    assert effective.formula_error(seeds=3) < 0.5


def test_the_interruptions_of_llama_3_come_as_often_as_reported(effective: ModuleType) -> None:
    assert sum(count for _, count, kind, _ in effective.LLAMA_COUNTS if kind != "planned") == 419
    free = {kind: effective.Stop(0.0, 0.0) for kind in ("gpu", "bug", "machine", "hang", "corrupt", "planned")}
    outcome = effective.repeated(effective.llama_job(2.8), lambda: effective.Stated(free), 10)
    assert outcome.interruptions / 10 == pytest.approx(466, rel=0.05)


@pytest.mark.parametrize(
    ("kind", "stays", "changes", "person", "again", "share"),
    [
        ("rank", False, {}, False, False, 1.0),
        ("gpu", False, {"raises": True}, True, False, 1.0),
        ("gpu", False, {}, False, False, 1.0),
        ("bug", False, {}, True, False, 1.0),
        ("corrupt", True, {}, True, False, 1.0),
        ("gpu", True, {}, False, False, 1.0),
        ("gpu", True, {"withdraws": False}, False, True, 1.0),
        ("gpu", True, {"withdraws": False, "least_nodes": 48}, False, True, 0.96),
        ("machine", False, {}, False, False, 1.0),
        ("machine", False, {"spares": 0.0, "least_nodes": 48}, False, False, 0.96),
        ("machine", False, {"spares": 0.0}, True, True, 1.0),
    ],
)
def test_what_follows_an_interruption_is_decided_by_our_code(
    effective: ModuleType, kind: str, stays: bool, changes: dict[str, object], person: bool, again: bool, share: float
) -> None:
    policy = effective.Ours(effective.Setting(50, **changes))
    stop = policy.stop(effective.Cause("a cause", 1.0, kind, stays), 0.0, random.Random(1))
    assert (stop.person_s > 0, stop.again_s > 0, policy.share) == (person, again, share)


def test_a_spent_budget_ends_the_run_and_a_person_renews_it(effective: ModuleType) -> None:
    budget = effective.RetrySpec(node_lost=2)
    policy, draw = effective.Ours(effective.Setting(8, retry=budget)), random.Random(1)
    rank = effective.Cause("a rank", 1.0, "rank")
    waits = [policy.stop(rank, 0.0, draw).person_s > 0 for _ in range(6)]
    assert waits == [False, False, True, False, False, True]


def test_a_gang_grows_when_its_machine_is_repaired(effective: ModuleType) -> None:
    policy = effective.Ours(effective.Setting(50, spares=0.0, least_nodes=48))
    policy.stop(effective.Cause("a machine", 1.0, "machine"), 10.0, random.Random(1))
    assert policy.grows_at() == 10.0 + effective.REPAIR_S
    policy.grow(policy.grows_at())
    assert (policy.share, policy.grows_at()) == (1.0, float("inf"))
