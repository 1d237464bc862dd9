"""The page of a run: what it says for each verdict, how it is kept, what it hides, and that it ends nothing."""

from __future__ import annotations

import json
import logging
import re
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path
from unittest.mock import Mock

import pytest

from infra.store import layout
from tasks.pages import run_page
from tasks.pages import run_page as module
from tasks.pages.facts import Facts, facts_of
from tasks.pages.html import HEAD
from tasks.pages.run_page import keep_page, page_path, run_report_page
from tasks.run.report import latest_report, num_attempts
from tasks.run.run import Run, reopen_run
from tasks.stages.artifacts import report_results
from tests.support.damage import overwrite
from tests.support.pictures import elements_of
from tests.support.reported import CANCELLED, FIRST, NOT_PROMOTED, PROMOTED, REJECTED, RUNS, reported_store

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def store(tmp_path: Path, repository: Path) -> Path:
    return reported_store(repository / "tests/golden/store-v1", tmp_path)


@pytest.fixture
def facts(store: Path) -> Facts:
    """The facts about the run that was promoted."""
    return facts_of(opened(store, PROMOTED))


def opened(store: Path, run: str) -> Run:
    return reopen_run(run, str(store))


def words(page: str) -> str:
    """What a page shows, as one line."""
    text = re.sub(r"<style>.*?</style>|<svg.*?</svg>", " ", page, flags=re.DOTALL)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", text)))


SAID = {
    "promoted": ["Promoted", "tiny@champion is version 2, was 1", "2 of 2 gates met", "it gains 0.0339"],
    "rejected": ["Rejected", "The contract rejected the data", "row 4", "7.5", "Mend the data"],
    "not promoted": ["Not promoted", "2 of 4 gates met", "insufficient evidence", "1,240 would decide", "loses 0.0700"],
    "recovered": ["Promoted", "It recovered: the training was restarted once", "node_lost", "10 steps, 2 s"],
    "waiting": ["Waiting", "a person must approve", "The run may continue: trainwright resume"],
    "cancelled": ["Cancelled", "The run may continue"],
}


@pytest.mark.parametrize("name", RUNS)
def test_a_page_says_the_verdict_first_and_why(name: str, store: Path) -> None:
    page = run_report_page(facts_of(opened(store, RUNS[name])))
    said = words(page.partition("<main>")[2])
    at = [said.find(one) for one in SAID[name]]
    assert -1 not in at, SAID[name][at.index(-1)]
    assert said.index(SAID[name][0]) < 120
    assert page.startswith(HEAD)
    assert "could not be made" not in page


def test_rejected_data_comes_first(store: Path) -> None:
    said = words(run_report_page(facts_of(opened(store, REJECTED))))
    assert said.index("Data and contract") < said.index("Lineage")
    said = words(run_report_page(facts_of(opened(store, NOT_PROMOTED))))
    assert "gates not met: accuracy, accuracy on the slice weekend; tiny@champion stays at version 1. Train a" in said
    assert said.count("but 59 rows are too few to decide") == 2, "once at its gate, once at its stage"
    assert said.count("The 59 test rows have decided 13 comparisons") == 1
    assert said.index("Gates") < said.index("Training") < said.index("Data and contract") < said.index("Time and cost")


def test_a_page_is_kept_once(store: Path) -> None:
    run = opened(store, PROMOTED)
    report = latest_report(run.store, PROMOTED)
    assert keep_page(run, report, {}) is report
    first = (store / "runs" / PROMOTED / "report.html").read_bytes()
    keep_page(run, report.model_copy(update={"sentence": "another"}), {})
    assert (store / "runs" / PROMOTED / "report.html").read_bytes() == first
    assert page_path(run, report) == f"runs/{PROMOTED}/report.html"


def test_the_page_of_an_attempt_is_not_counted_as_an_attempt(store: Path) -> None:
    run = opened(store, CANCELLED)
    keep_page(run, latest_report(run.store, CANCELLED), {})
    assert (store / "runs" / CANCELLED / "pages/0.html").exists()
    assert num_attempts(run) == 1
    assert not run.store.exists(layout.page(CANCELLED))


def test_a_page_that_cannot_be_made_is_one_warning(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = opened(store, PROMOTED)
    report = latest_report(run.store, PROMOTED)
    monkeypatch.setattr(module, "run_report_page", Mock(side_effect=MemoryError("a value of the data")))
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert keep_page(run, report, {}) is report
    assert [one.getMessage() for one in caplog.records] == [f"The report of run {PROMOTED} has no page: MemoryError."]
    assert not (store / "runs" / PROMOTED / "report.html").exists()


def test_warnings_of_budgets_stand_beside_the_cost(facts: Facts) -> None:
    warned = replace(facts, report=facts.report.model_copy(update={"budgets": ["The budget <b>all</b> is used up."]}))
    page = run_report_page(warned)
    cost = page.index("Cost: ")
    assert page.index("The budget &lt;b&gt;all&lt;/b&gt; is used up.") > cost > page.index("Time and cost")


def test_a_part_that_fails_leaves_the_others(facts: Facts) -> None:
    page = run_report_page(replace(facts, contract=facts.contract.model_copy(update={"failures": None})))
    assert page.count("could not be made") == 1
    assert "Time and cost" in page


@pytest.mark.parametrize("gone", ["datasets", "evaluations", "trainings", "contracts", "models", "aliases", "code"])
def test_a_store_that_has_lost_a_part_still_gives_a_page(gone: str, store: Path) -> None:
    shutil.rmtree(store / gone)
    page = run_report_page(facts_of(opened(store, PROMOTED)))
    assert "could not be made" not in page
    assert "tiny@champion is version 2" in page


def test_many_expectations_that_hold_are_folded_and_what_is_broken_is_not(
    facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = report_results(facts.run, facts.contract)[0]
    broken = replace(one, unclear="broken", text="what is broken")

    def page_with(held: int) -> tuple[str, str, str]:
        monkeypatch.setattr(run_page, "report_results", lambda *_: [*[one] * held, broken])
        return run_report_page(facts).partition("<details>")

    before, found, after = page_with(12)
    assert found
    assert "what is broken" in before
    assert after.startswith("<summary>12 expectations hold</summary>")
    assert page_with(11)[1] == ""


def test_the_worst_rows_are_those_of_a_metric_that_has_a_value_for_each(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = facts_of(opened(store, FIRST))
    metrics = facts.evaluation.metrics
    f1 = metrics["accuracy"].model_copy(update={"unit": "dataset"})
    monkeypatch.setattr(Facts, "main_metric", "f1")
    both = facts.evaluation.model_copy(update={"metrics": {"f1": f1, **metrics}})
    assert "with the worst accuracy" in words(run_report_page(replace(facts, evaluation=both)))
    alone = facts.evaluation.model_copy(update={"metrics": {"f1": f1}})
    assert "f1 has no value for each row" in words(run_report_page(replace(facts, evaluation=alone)))


def test_values_of_sensitive_columns_are_masked(store: Path) -> None:
    resolved = store / "runs" / FIRST / "resolved.json"
    record = json.loads(resolved.read_text())
    record["spec"]["data"]["sensitive"] = ["a"]
    overwrite(resolved, json.dumps(record))
    page = run_report_page(facts_of(opened(store, FIRST)))
    assert "•••" in re.findall(r"<td[^>]*>(.*?)</td>", page)
    assert "0.10241" not in page, "column a of the row"
    assert "-0.858167" in page, "column b of the row"
    assert ">id<" not in page, "a column that the spec does not name"
    assert "Truths and predictions are not shown" in page
    record["spec"]["shards"]["transform"] = "net.transform"
    overwrite(resolved, json.dumps(record))
    page = run_report_page(facts_of(opened(store, FIRST)))
    assert "-0.858167" not in page, "may have been computed from a"


def test_forged_texts_of_a_store_are_texts(store: Path) -> None:
    forged = "<script>alert(1)</script><img src=x onerror=alert(1)>\" ' ]]> & </title></style>"
    path = store / "runs" / NOT_PROMOTED / "report.json"
    report = json.loads(path.read_text())
    for stage in report["stages"]:
        stage.update(name=forged, sentence=forged)
    report.update(sentence=forged, metrics={forged: 1.0}, started=forged, actor=forged)
    report["error"].update(message=forged, remedy=forged, user_traceback=forged)
    report["error"]["details"]["gates"][0].update(metric=forged, sentence=forged, slice=forged)
    overwrite(path, json.dumps(report))
    elements = elements_of(run_report_page(facts_of(opened(store, NOT_PROMOTED))))
    assert not {"script", "img", "link", "iframe", "object"} & set(elements.names)
    assert sum("<script>alert(1)" in text for text in elements.texts) >= 10
