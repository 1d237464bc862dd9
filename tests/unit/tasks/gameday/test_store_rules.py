"""Whether a pipeline's store allows a game day: its policy and its budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import OverBudget, SpecError, UsageError
from data_contracts.pipeline_spec import PipelineSpec
from infra.budgets import Executed, Ledger, apply_rules, current_budgets
from infra.processes.this_process import now_s
from infra.store import Store
from tasks.budgets import budget_periods
from tasks.gameday import refuse_by_store
from tests.support.tiny import SPEC

# Two nodes on this machine for half an hour are one node-hour.
NODES, AT_MOST_S = 2, 1800.0


def budget(store: Store, limit: dict[str, Any] | None = None, **more: Any) -> None:
    content = {"per": "month", "limit": limit or {"hours": 10}, **more}
    apply_rules(store, "budgets", {"version": 1, "budgets": {"b": content}})


def ledger_of(store: Store) -> Ledger:
    """What the budget has left this month."""
    [period] = budget_periods(current_budgets(store), "tiny", {"team": "tests"}, "r", (now_s(), now_s()))
    return period.ledger(store)


def ask(store: Store, **tags: str) -> None:
    train = {**SPEC["train"], "nodes": NODES, "strategy": "ddp"}
    mine = {**SPEC["tags"], **tags, "gameday": "true"}
    spec = PipelineSpec.model_validate({**SPEC, "name": "tiny-gameday", "train": train, "tags": mine})
    refuse_by_store(store.uri, None, "tiny", spec, Path("pipeline.yaml"), AT_MOST_S)


@pytest.mark.parametrize(
    ("more", "spent", "refused"),
    [
        ({}, 8.9, False),
        ({}, 9.1, True),
        ({}, 10.0, True),
        ({"at_limit": "refuse"}, 9.1, False),
        ({"at_limit": "refuse"}, 10.0, True),
        ({"at_limit": "warn"}, 11.0, False),
        ({"pipeline": "tiny"}, 9.1, True),
        ({"where": {"team": "tests"}}, 9.1, True),
    ],
)
def test_a_budget_must_have_left_what_the_game_day_may_use(
    more: dict[str, Any], spent: float, refused: bool, store: Store
) -> None:
    budget(store, **more)
    ledger_of(store).settle({Executed("r", "e"): spent})
    if not refused:
        ask(store)
        return
    with pytest.raises(OverBudget) as caught:
        ask(store)
    sentence = "has too little left for this game day, which may use 1.00 node-hours: "
    assert f"{sentence}{spent:.2f} of 10.00 node-hours are spent." in caught.value.message
    assert "--at-most" in caught.value.remedy


def test_budgets_of_others_and_stores_without_budgets_forbid_nothing(store: Store, tmp_path: Path) -> None:
    ask(store)
    for other in ({"pipeline": "another"}, {"where": {"team": "sales"}}):
        budget(store, {"hours": 0.1}, **other)
        ask(store)
    gone = tmp_path / "none"
    refuse_by_store(str(gone), None, "tiny", PipelineSpec.model_validate(SPEC), Path("pipeline.yaml"), AT_MOST_S)
    assert not gone.exists()


def test_each_run_has_its_limit_and_a_game_day_is_one(store: Store) -> None:
    budget(store, {"hours": 0.5}, per="run")
    with pytest.raises(OverBudget, match=r"0\.00 of 0\.5 node-hours are spent"):
        ask(store)


def test_a_price_that_nobody_knows_cannot_be_counted(store: Store) -> None:
    budget(store, {"amount": 100, "currency": "USD"})
    with pytest.raises(UsageError, match="budget b is in USD, and a price is unknown"):
        ask(store)


def test_what_a_dead_run_holds_is_settled_before_a_game_day_is_refused(store: Store) -> None:
    budget(store)
    ledger_of(store).reserve(Executed("dead", "e"), 0.0, 9.5, None)
    with pytest.raises(OverBudget, match=r"9\.50 of 10\.00 node-hours are spent"):
        ask(store)


def test_the_policy_on_tags_holds_for_a_game_day_too(store: Store) -> None:
    apply_rules(store, "policy", {"version": 1, "tags": {"team": ["tests"]}})
    ask(store)
    with pytest.raises(SpecError, match=r"pipeline.yaml: tags.team: 'slaes' is not allowed"):
        ask(store, team="slaes")
