"""Pages in a real browser: nothing overlaps, nothing is empty, nothing is loaded, on a desk and on a telephone."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from data_contracts.records import Bar, ColumnDrift, DriftReport, FailureEvent
from data_contracts.rules import Objectives
from infra.budgets import apply_rules
from infra.records.nodes import record_failure
from infra.store import open_store
from tasks.costs.months import month_costs, month_named
from tasks.gameday import Outcome, chosen, game_day_page, not_tried
from tasks.pages import facts as facts_module
from tasks.pages.comparison_page import compare_sides, comparison_page, find_side
from tasks.pages.cost_page import cost_page
from tasks.pages.day_page import day_page
from tasks.pages.facts import Facts, Pairs, facts_of, pairs_of
from tasks.pages.run_page import run_report_page
from tasks.profile import profile_page
from tasks.queries.day import day_of
from tasks.run.run import known_store_list, reopen_run
from tasks.stages.artifacts import gates_image
from tests.support.browser import Browser, chromium
from tests.support.ledger_runs import write_month
from tests.support.reported import RUNS, reported_store
from tests.support.runs import make_run
from tests.unit.tasks.profile.test_page import found as profiled

pytestmark = pytest.mark.apt("chromium")
# What is wrong with a page, as sentences: whether it or a table scrolls sideways, charts without shapes, texts that
# overlap or leave their chart, and texts that one can hardly read on their background.
FAULTS = """(() => {
  const found = [];
  if (document.scrollingElement.scrollWidth > innerWidth)
    found.push(`the page is ${document.scrollingElement.scrollWidth} wide in a window of ${innerWidth}`);
  const light = colour => {
    const parts = colour.match(/[0-9.]+/g).slice(0, 3).map(one => one / 255)
      .map(one => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const paper = light(getComputedStyle(document.querySelector("section, header")).backgroundColor);
  const apart = colour => {
    const pair = [light(colour), paper].sort((a, b) => b - a);
    return (pair[0] + 0.05) / (pair[1] + 0.05);
  };
  if (matchMedia("screen").matches)
    for (const one of document.querySelectorAll(".wide"))
      if (one.scrollWidth > one.clientWidth + 1)
        found.push(`a table is ${one.scrollWidth} wide in ${one.clientWidth}: ${one.textContent.slice(0, 60)}`);
  for (const svg of document.querySelectorAll("svg")) {
    const name = svg.querySelector("title").textContent, box = svg.getBoundingClientRect();
    if (svg.querySelectorAll("rect, path, circle, polygon, line").length < 2 || box.width < 20 || box.height < 20)
      found.push(`${name} is empty`);
    const texts = [...svg.querySelectorAll("text")].map(one => [one, one.getBoundingClientRect()]);
    for (const [one, at] of texts) {
      const said = `${name}: "${one.firstChild.data}"`;
      if (at.left < box.left - 1 || at.right > box.right + 1 || at.top < box.top - 1 || at.bottom > box.bottom + 1)
        found.push(`${said} leaves its chart`);
      const contrast = apart(getComputedStyle(one).fill);
      if (contrast < 4.5) found.push(`${said} has a contrast of ${contrast.toFixed(2)}`);
      for (const [other, there] of texts)
        if (one !== other && at.left < there.right - 1 && there.left < at.right - 1 &&
            at.top < there.bottom - 2 && there.top < at.bottom - 2)
          found.push(`${said} overlaps "${other.firstChild.data}"`);
    }
  }
  for (const one of document.querySelectorAll("h1, h2, h3, p, td, th, dt, dd, .tag, footer")) {
    const contrast = apart(getComputedStyle(one).color);
    if (one.textContent && contrast < 4.5) found.push(`"${one.textContent}" has a contrast of ${contrast.toFixed(2)}`);
  }
  for (const one of document.querySelectorAll("section, figure, .chart"))
    if (one.getBoundingClientRect().height < 20) found.push(`an empty ${one.tagName}`);
  return found;
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> dict[str, Facts]:
    """The facts about a run of each verdict."""
    store = reported_store(repository / "tests/golden/store-v1", tmp_path_factory.mktemp("reported"))
    return {name: facts_of(reopen_run(run, str(store))) for name, run in RUNS.items()}


def pairs(kind: str) -> Pairs | None:
    """Truths and predictions of 20,000 rows."""
    draw = np.random.default_rng(1)
    if kind == "numbers":
        truth = draw.gamma(2.0, 30.0, 20_000)
        return pairs_of(truth, (truth + draw.normal(0, 8, 20_000))[:, None])
    classes = 3 if kind == "classes" else 40
    truth = draw.integers(0, classes, 20_000)
    scores = draw.random((20_000, classes))
    scores[np.arange(20_000), truth] += 1.2 * draw.random(20_000)
    return pairs_of(truth, scores / scores.sum(axis=1, keepdims=True))


def drifted() -> DriftReport:
    column = ColumnDrift(
        **{"column": "a", "verdict": "critical", "p": 1e-9, "psi": 0.4, "ks": 0.3, "nulls": (0.0, 0.02)},
        bars=[Bar(label=str(at), then=0.1, now=at / 45) for at in range(10)],
        sentence="a: its mean rose from 0.1 to 0.4",
    )
    return DriftReport(against="the champion's data", rows=(600, 620), columns=[column])


def all_right(browser: Browser, page: str, folder: Path) -> None:
    """Hold a page against the faults, in light and dark, wide and narrow, and on paper."""
    path = folder / "page.html"
    path.write_text(page)
    browser.requested.clear()
    colours: dict[bool, str] = {}
    for width, dark, media in (
        (1100, False, "screen"),
        (1100, True, "screen"),
        (390, False, "screen"),
        (390, True, "screen"),
        (740, False, "print"),
    ):
        browser.open(path, width=width, dark=dark, media=media)
        browser.screenshot(folder / f"{width}-{'dark' if dark else 'light'}-{media}.png")
        assert browser.run(FAULTS) == [], f"{width} px, {'dark' if dark else 'light'}, {media}"
        if media == "screen":
            colours[dark] = browser.run("getComputedStyle(document.body).backgroundColor")
    assert colours[False] != colours[True], "light and dark look the same"
    assert set(browser.requested) == {path.as_uri()}


@pytest.mark.parametrize("name", RUNS)
def test_the_page_of_each_verdict(name: str, facts: dict[str, Facts], browser: Browser, tmp_path: Path) -> None:
    page = run_report_page(facts[name])
    assert "could not be made" not in page
    all_right(browser, page, tmp_path)


@pytest.mark.parametrize("kind", ["classes", "many classes", "numbers"])
def test_a_page_with_truths_predictions_and_drift(
    kind: str, facts: dict[str, Facts], browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts_module, "read_pairs", lambda *_: pairs(kind))
    contract = facts["promoted"].contract
    page = run_report_page(replace(facts["promoted"], contract=contract.model_copy(update={"drift": drifted()})))
    assert ("Confusion matrix" in page, "minus truth" in page) == (kind != "numbers", kind == "numbers")
    assert "Calibration" in page or kind == "numbers"
    assert "its mean rose from 0.1 to 0.4" in page
    all_right(browser, page, tmp_path)


def test_a_comparison(facts: dict[str, Facts], browser: Browser, tmp_path: Path) -> None:
    stores = known_store_list(facts["promoted"].run.store.uri)
    found = compare_sides(find_side(stores, "tiny:1"), find_side(stores, "tiny@2"))
    all_right(browser, comparison_page(found), tmp_path)


OBJECTIVES = {"version": 1, "objectives": {"job-success": {"measure": "success", "target": 0.95}}}


def test_the_pages_of_a_day_and_a_month(browser: Browser, tmp_path: Path) -> None:
    store, now = open_store(str(tmp_path / "store")), datetime.now(UTC)
    write_month(store, 60, now, pipelines=3)
    content = {"version": 1, "budgets": {"the-team-of-sales-in-europe": {"per": "month", "limit": {"hours": 1.0}}}}
    apply_rules(store, "budgets", content)
    node, why = "gpu-node-0017.europe-west4-a.internal.example", "it was slower than the others"
    about = {"node": node, "kind": "straggler", "cause": "", "sentence": why, "training": "t", "generation": 0}
    record_failure(store, FailureEvent(**about, at=now.isoformat()))
    page = day_page(day_of([store], Objectives.model_validate(OBJECTIVES)))
    assert node in page
    all_right(browser, page, tmp_path)
    all_right(browser, cost_page([month_costs(store, month_named("2026-10"), now)]), tmp_path)


def test_the_page_of_a_game_day(browser: Browser, tmp_path: Path) -> None:
    faults = chosen(None)
    where = "rank 1 of node 0 (gpu-node-0017.europe-west4-a.internal.example), after step 15"
    struck = Outcome(faults[0].name, faults[0].what, "as promised", where=where, at="2026-11-26T07:41:12+00:00")
    figures = {"cause": "node_lost", "limit_s": 5.0, "noticed_s": 1.1, "recovered_s": 12.0, "lost_steps": 5}
    why = "the cause named is hung, not node_lost"
    outcomes = [
        replace(struck, **figures, lost_node_s=24.2, same_weights=True),
        replace(struck, **figures, lost_node_s=24.2, same_weights=False, verdict="not as promised", why=why),
        *(not_tried(fault, "retry.hung is 0, so it ends the training") for fault in faults[2:]),
    ]
    page = game_day_page("a-pipeline", outcomes, datetime(2026, 11, 26, 7, 41, tzinfo=UTC), 341.0)
    assert "2026-11-26 07:41:12" in page
    all_right(browser, page, tmp_path)


def test_the_page_of_a_profile(browser: Browser, tmp_path: Path) -> None:
    name = "cutlass_80_tensorop_f16_s16816gemm_relu_f16_256x128_32x3_tn_align8"
    all_right(browser, profile_page(make_run(), profiled(name)), tmp_path)


def test_a_picture_that_stands_alone_can_be_read_on_white_and_on_black(
    facts: dict[str, Facts], browser: Browser, tmp_path: Path
) -> None:
    lines = [*gates_image(facts["not promoted"].run, facts["not promoted"].gates)]
    [address] = re.findall(r"\((data:[^)]+)\)", "\n".join(lines))
    inline, picture = tmp_path / "inline.html", base64.b64decode(address.partition("base64,")[2]).decode()
    for ground in ("white", "#0f1720"):
        path = tmp_path / f"{ground.removeprefix('#')}.html"
        path.write_text(f'<section style="background:{ground}"><img src="{address}"></section>')
        browser.open(path, width=1100)
        assert browser.run("document.images[0].complete && document.images[0].naturalWidth") == 1000
        browser.screenshot(path.with_suffix(".png"))
        inline.write_text(f'<meta charset="utf-8"><section style="background:{ground}">{picture}</section>')
        browser.open(inline, width=1100)
        # Muted colours, which have to serve on both grounds.
        assert browser.run(FAULTS.replace("< 4.5", "< 3")) == []
