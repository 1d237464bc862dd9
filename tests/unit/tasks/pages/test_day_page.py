"""The page of a day: what needs a person first; nothing of a text becomes markup; one size whatever the store holds."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from data_contracts.errors import StorageUnavailable
from data_contracts.records import FailureEvent
from data_contracts.rules import Budgets, Objectives
from infra.budgets import Executed, apply_rules
from infra.records.nodes import decide, record_failure
from infra.store import Store, layout, open_store
from tasks.budgets import BudgetPeriod, month_of
from tasks.pages.day_page import MOST, MOST_RUNS, age, day_page, day_rows, group_of, is_day_page, needs
from tasks.queries.day import Day, day_of
from tasks.slo import LedgerRun
from tests.support.ledger_runs import failure, report, run_id_at, usage, write, write_month

NOW = datetime.now(UTC)
HOUR = timedelta(hours=1)
ONE = {"version": 1, "objectives": {"job-success": {"measure": "success", "target": 0.95}}}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "a store"))


def add(store: Store, hours_ago: float, verdict: str = "promoted", cause: str = "", **changes: Any) -> str:
    """Write a run that took half an hour; returns its id."""
    ended = datetime.now(UTC) - hours_ago * HOUR
    began = ended - 0.5 * HOUR
    run_id = run_id_at(began)
    error = failure(cause) if cause else None
    write(store, report(run_id, began, ended, verdict, error=error, **changes), usage(run_id, began, ended))
    return run_id


def seen(*stores: Store) -> Day:
    return day_of(stores, Objectives.model_validate(ONE))


def sentences(day: Day) -> list[tuple[str, str]]:
    return [(one.tone, one.sentence) for one in needs(day)]


def test_an_empty_store_and_no_store_have_a_page(store: Store) -> None:
    for day in (seen(store), seen()):
        page = day_page(day)
        assert "No runs yet" in page
        assert is_day_page(page[:2048])
        assert "<svg" not in page
    assert not is_day_page("<!doctype html><title>Day to</title>")


def test_only_the_newest_failure_of_a_pipeline_needs_a_person(store: Store) -> None:
    add(store, 9, "failed", "node_lost")
    add(store, 5)
    assert sentences(seen(store)) == []
    failed = add(store, 2, "failed", "node_lost")
    need = needs(seen(store))[-1]
    assert (need.tone, need.sentence) == ("bad", "the newest run of orders failed in train: node lost")
    assert need.command == f"trainwright report {failed}"
    add(store, 1, "failed", "user_code", pipeline="other")
    assert ("bad", "the newest run of other failed in train: an error in the user's code") in sentences(seen(store))


def test_what_waits_or_died_or_is_damaged_needs_a_person(store: Store) -> None:
    waiting = add(store, 30, "waiting", "waiting")
    began = datetime.now(UTC) - 6 * HOUR
    dead = run_id_at(began)
    write(store, None, usage(dead, began, None))
    hurt = run_id_at(began, 1)
    store.create(layout.report(hurt), b"{nonsense")
    commands = [one.command for one in needs(seen(store))]
    answer = f"trainwright approve {waiting} --reason WHY"
    assert commands == [f"trainwright resume {dead}", f"trainwright show {hurt}", answer]
    title, counted, _ = day_rows(seen(store))
    assert (title, counted) == ("3 things need a person", "1 failed, 1 not ended.")


def test_two_bad_nights_are_an_alert(store: Store) -> None:
    for hours in (1, 2):
        add(store, hours, "failed", "node_lost")
    assert ("bad", "job-success: page: spent 20.0 times too fast over 24 h") in sentences(seen(store))
    assert any(one.command == f"trainwright slo '{store.uri}'" for one in needs(seen(store)))


def test_budgets_and_nodes(store: Store) -> None:
    add(store, 1)
    content = {"version": 1, "budgets": {"mine": {"per": "month", "limit": {"hours": 1.0}}}}
    apply_rules(store, "budgets", content)
    budget_period = BudgetPeriod("mine", Budgets.model_validate(content).budgets["mine"], month_of(time.time()))
    budget_period.ledger(store).settle({Executed("r", "1-a"): 2.0})
    event = FailureEvent(
        node="n<b>1",
        kind="straggler",
        cause="",
        sentence="",
        training="t",
        generation=0,
        at=datetime.now(UTC).isoformat(),
    )
    record_failure(store, event)
    before = store.stored()
    assert sentences(seen(store)) == [
        ("bad", f"nothing is left of mine: 0.00 of 1.00 node-hours left ({budget_period.period})"),
        ("warn", "node n<b>1: 1 mishap, the last one a straggler"),
    ]
    assert store.stored() == before  # the page only reads
    decide(store, "n<b>1", drained=True, reason="<script>alert(1)</script>")
    page = day_page(seen(store))
    assert "drained" in page
    assert "n&lt;b&gt;1" in page
    assert "<script" not in page
    assert [tone for tone, _ in sentences(seen(store))] == ["bad"]


def test_no_text_of_an_error_and_nothing_of_markup_is_on_the_page(store: Store) -> None:
    add(store, 1, "failed", "storage", pipeline='<img src=x onerror="1">')
    page = day_page(seen(store))
    assert "4711" not in page
    assert "<img" not in page
    assert "&lt;img" in page
    assert not re.search(r"(?:src|href)=[\"']?(?!data:)", re.sub(r"&[a-z]+;[^<]*", "", page))


def test_a_store_that_is_away_is_named_beside_the_others(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, 1)
    other = open_store(str(tmp_path / "other"))
    monkeypatch.setattr(other, "list", Mock(side_effect=StorageUnavailable("It does not answer.")))
    day = seen(store, other)
    assert [one.is_away for one in day.stores] == [False, True]
    assert sentences(day) == [("warn", "not on this page, because it could not be read: the store: storage")]
    assert "1 in 28 days" in day_page(day)


def test_a_thousand_runs_make_a_page_of_a_bounded_size(store: Store) -> None:
    write_month(store, 1000, datetime.now(UTC), pipelines=200)
    day = seen(store)
    page = day_page(day)
    assert len(day.stores[0].runs) == 1000
    assert len(page) < 100_000
    assert page.count("<tr>") < MOST_RUNS + 60
    assert sum(one.kind == "failed" for one in needs(day)) <= MOST + 1


@pytest.mark.parametrize(
    ("verdict", "cause", "group"),
    [
        ("promoted", "", "promoted"),
        ("canary", "", "unchanged"),
        ("unchanged", "", "unchanged"),
        ("rejected", "contract_rejected", "refused"),
        ("not_promoted", "gate_not_met", "refused"),
        ("failed", "hung", "failed"),
        ("died", "crashed", "failed"),
        ("failed", "diverged", "failed in the user's code"),
        ("cancelled", "cancelled", "stopped"),
        ("over_budget", "over_budget", "stopped"),
        ("running", "", "not ended"),
        ("waiting", "waiting", "not ended"),
        ("unknown", "", "not ended"),
    ],
)
def test_the_word_by_which_a_run_is_counted(verdict: str, cause: str, group: str) -> None:
    assert group_of(LedgerRun("r", "p", verdict, 0, 0, cause)) == group


@pytest.mark.parametrize(
    ("since", "said"),
    [
        (timedelta(days=3, hours=5), "3 days"),
        (timedelta(days=1), "a day"),
        (timedelta(minutes=70), "an hour"),
        (timedelta(seconds=9), "9 seconds"),
        (-HOUR, "unknown"),
        ("2026-11-26T00:00:00", "unknown"),
        ("yesterday", "unknown"),
        ("", "unknown"),
    ],
)
def test_ages(since: timedelta | str, said: str) -> None:
    assert age(since if isinstance(since, str) else (NOW - since).isoformat(), NOW) == said
