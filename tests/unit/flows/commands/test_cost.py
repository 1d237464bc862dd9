"""`cost` tells what a real run cost: by tag, stage and cause, as a table, CSV and JSON; also of a killed run."""

from __future__ import annotations

import csv
import io
import json
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from data_contracts.costs import MonthCosts
from data_contracts.executions import ExecutionUsage
from data_contracts.resolved import Price
from flows.commands.costs import _unpriced
from infra.prices import THIS_MACHINE, VARIABLE
from infra.store import Store, layout, open_store
from tasks.costs.months import keep_months
from tasks.costs.sums import charged, sums
from tasks.pages.cost_page import missing_words
from tests.support.commands import output_of
from tests.support.tiny import home_with_server, trainwright, work_on_a_copy, write_project
from tests.unit.tasks.costs.test_charges import BEGAN, execution

pytestmark = pytest.mark.warm

BOOK = "version: 1\nmachines: {desk: {prices: [{date: 2026-01-01, currency: USD, per_hour: 3600}]}}\n"
RUN = "20251124-160000-abcdef"  # began at BEGAN


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory, shared_folder: Path) -> Path:
    """A project with one finished run on a machine that costs a dollar a second."""
    spec = write_project(tmp_path_factory.mktemp("project") / "tiny")
    book = tmp_path_factory.mktemp("book") / "prices.yaml"
    book.write_text(BOOK)
    with home_with_server(tmp_path_factory.mktemp("home"), shared_folder):
        ran = trainwright("run", spec, env={VARIABLE: str(book), THIS_MACHINE: "desk"})
        assert ran.returncode == 0, ran.stderr
    return spec.parent


@pytest.fixture
def project(line: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return work_on_a_copy(line, tmp_path, monkeypatch)


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    return output_of(capsys, "cost", *words, code=code)


def store_of(project: Path) -> Store:
    return open_store(str(project / ".trainwright"), create=False)


def executions(store: Store) -> list[ExecutionUsage]:
    [run_id] = store.list(layout.runs())
    names = store.list(layout.usages(run_id))
    return [store.read_as(layout.usage(run_id, name, "ended"), ExecutionUsage.from_json) for name in names]


def test_a_run_is_charged_once_for_each_second_of_its_machine(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [one] = executions(store_of(project))
    [group] = json.loads(said(capsys, "--by", "team", "--json"))["groups"]
    assert (group["team"], group["runs"], group["so_far"]) == ("tests", 1, 0)
    # The node that trained is a process of the same machine, so the whole is the run's own time.
    assert group["node_seconds"] == pytest.approx((one.ended or 0) - one.began, rel=1e-3)
    assert group["amounts"] == {"USD": pytest.approx(group["node_seconds"], abs=0.01)}
    assert 0 < group["goodput"] < 1
    assert sum(group["causes"].values()) == pytest.approx(group["node_seconds"], rel=1e-6)


def test_by_stage_every_stage_is_there(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    groups = json.loads(said(capsys, "--by", "stage", "--json"))["groups"]
    assert {"validate", "shard", "train", "verify", "evaluate", "promote"} <= {one["stage"] for one in groups}
    assert all(one["amounts"].keys() <= {"USD"} for one in groups)
    assert "tiny" in said(capsys, "--by", "pipeline")


def test_a_name_is_no_line_below_the_table(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.commands.costs._unpriced", lambda *_: ["no known price (a\ntotal  0.00 USD)"])
    assert said(capsys).endswith("no known price (a\\ntotal  0.00 USD)\n")


@pytest.mark.parametrize(
    ("machines", "named"),
    [([], ""), (["m"], "(m)"), (["b", "a", "a"], "(a, b)"), (["a", "b", "c", "d", "e"], "(a, b, c and 2 more)")],
)
def test_machines_without_a_known_price_are_named(machines: list[str], named: str) -> None:
    prices = [{"here": Price(machine=name, per_hour=None, price_date="")} for name in machines]
    found = charged([execution(prices=one) for one in prices], 0.0, 2e11)
    lines = _unpriced(sums(found, [], set())[1], found)
    assert [line.partition(" have no known price ")[2].partition(";")[0] for line in lines] == [named] * bool(named)
    assert all("a region to a pool whose machine has prices for several regions (" in line for line in lines)


def test_a_run_that_was_killed_is_counted_so_far(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = json.loads(said(capsys, "--json"))["total"]["node_seconds"]
    [one] = executions(store_of(project))
    (project / ".trainwright" / layout.usage(one.run_id, one.execution, "ended")).unlink()
    value = json.loads(said(capsys, "--by", "stage", "--json"))
    assert value["total"]["so_far"] == 1
    # Only the time after the last stage is not known.
    assert value["total"]["node_seconds"] == pytest.approx(whole, abs=whole / 2)
    assert {"train", "evaluate"} <= {group["stage"] for group in value["groups"]}
    assert "has not ended and counts so far" in said(capsys)


def test_a_run_of_an_earlier_version_has_the_cost_of_its_report(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_of(project)
    [one] = executions(store)
    for path in sorted((project / ".trainwright" / layout.usages(one.run_id, one.execution)).iterdir()):
        path.unlink()
    value = json.loads(said(capsys, "--by", "cause", "--json"))
    report = store.read_json(layout.report(one.run_id))
    assert value["total"]["node_seconds"] == pytest.approx(report["cost"]["node_seconds"])
    assert [group["cause"] for group in value["groups"]] == ["unknown"]


def test_what_others_put_into_a_store_hides_no_other_run(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, now = open_store(str(tmp_path / "store")), time.time()
    about = {"pipeline": "p", "model": "m", "tags": {}, "prices": {}, "began": now - 60, "ended": now}
    for number in range(4):
        run_id = f"20261125-000000-00000{number}"
        one = ExecutionUsage(run_id=run_id, execution="e", **about)
        store.create_once(layout.usage(run_id, "e", "began" if number == 1 else "ended"), one.to_json())
    folder = Path(store.uri) / "runs"
    newer = folder / run_id / "usage/e/ended.json"
    newer.unlink()
    newer.write_text('{"schema_version": 99}')
    for odd in ("No Run", "20261125-000000-000000/usage/No Name", "20261125-000000-000001/usage/e/stage-x.json"):
        (folder / odd).mkdir(parents=True)
    value = json.loads(said(capsys, store.uri, "--json"))
    assert (value["total"]["runs"], value["unreadable"]) == (2, [run_id]), "run 1 has used nothing yet"


def test_no_cell_of_a_forged_record_is_a_formula(
    tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, now, run_id = open_store(str(tmp_path / "store")), time.time(), "20261125-000000-0a0a0a"
    price = Price(machine="\uff1dSUM(1+1)", per_hour=1.0, price_date="2026-01-01")
    about = {"run_id": run_id, "execution": "e", "pipeline": "@SUM(1+1)", "model": "m", "began": now - 60, "ended": now}
    tags = {"team": '=HYPERLINK("http://x.test")', "=1+1": "\t-2+3", "debt": "-5"}
    forged = ExecutionUsage(**about, tags=tags, prices={"here": price})
    store.create_once(layout.usage(run_id, "e", "ended"), forged.to_json())
    (row,) = csv.DictReader(io.StringIO(said(capsys, store.uri, "--format", "focus")))
    assert (row["SkuId"], row["x_Pipeline"], row["Tags"][0]) == ("'" + price.machine, "'@SUM(1+1)", "{")
    assert '\n=HYPERLINK("http://x.test")  ' in said(capsys, store.uri, "--by", "team"), "a terminal runs no formula"


@pytest.fixture
def used(store: Store) -> Store:
    """A store with what one run used, of which nothing else is known."""
    one = execution(run_id=RUN)
    store.create_once(layout.usage(RUN, one.execution, "ended"), one.to_json())
    return store


def test_a_window_in_another_zone_has_the_same_runs(used: Store, capsys: pytest.CaptureFixture[str]) -> None:
    began = datetime.fromtimestamp(BEGAN, UTC)
    for hours in (-12, 0, 14):
        zone = timezone(timedelta(hours=hours))
        first, last = ((began + timedelta(hours=more)).astimezone(zone).isoformat() for more in (-1, 1))
        value = json.loads(said(capsys, used.uri, "--since", f"{first}..{last}", "--json"))
        assert (value["total"]["runs"], value["since"][-6:]) == (1, "+00:00")
    span = "2020-01-01..2020-02-01"
    assert said(capsys, used.uri, "--since", span).startswith("No run used anything since 2020-01-01")


def test_a_months_figures_stay_and_its_page_is_written(
    used: Store, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_months(used, datetime.now(UTC))
    used.forget(layout.usage(RUN, "e1", "ended"))
    out = tmp_path / "page.html"
    value = json.loads(said(capsys, used.uri, "--month", "2025-11", "--html", str(out), "--json"))
    assert sum(line["node_seconds"] for line in value["costs"][0]["lines"]) == pytest.approx(100)
    assert "2025-11" in out.read_text()
    assert "exists already" in said(capsys, used.uri, "--month", "2025-11", "--html", str(out), code=2)


def test_a_month_that_is_not_over_says_so(used: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now, page = f"{datetime.now(UTC):%Y-%m}", tmp_path / "page.html"
    sentence = f"{now} is not over: these are its figures so far."
    assert sentence in said(capsys, used.uri, "--month", now, "--html", str(page))
    assert sentence in page.read_text()
    assert "is not over" not in said(capsys, used.uri, "--month", "2025-11")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--month", "2025-11", "--format", "focus"), "--format focus does not go with --month"),
        (("--month", "2025-11", "--by", "team"), "--by does not go with --month"),
        (("--html", "page.html"), "--html writes the page of a month"),
        (("--month", "2025-13"), "'2025-13' is not a month"),
        (("--month", "2999-01"), "lies in the future"),
        (("--since", "0001-01-01T00:00+14:00..2020-01-01"), "lies too far away"),
        (("--since", "2999-01-01"), "--since: 2999-01-01 lies in the future."),
        (("--since", "2026-02-29"), "--since: '2026-02-29' is a day that no calendar has. Name"),
        (("--since", "yesterday"), "--since: 'yesterday' cannot be read. Name a length"),
        (("--since", "2020-02-01..2020-01-01"), "is empty"),
        (("--by", "tema"), "no run has a tag 'tema'"),
    ],
)
def test_what_cannot_be_told_and_an_option_that_would_do_nothing_are_refused(
    words: tuple[str, ...], sentence: str, used: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in said(capsys, used.uri, *words, code=2)


def test_a_month_names_the_runs_that_have_not_ended_and_those_that_are_damaged() -> None:
    month = MonthCosts(month="2025-11", made="2025-12-01T00:00:00+00:00", lines=[], so_far=["a"], unreadable=["b", "c"])
    assert missing_words([month]) == [
        "Runs that have not ended and count so far (1): a.",
        "Runs whose records are damaged and that are not counted (2): b, c.",
    ]


def test_a_time_that_no_calendar_has_is_a_damaged_record(used: Store, capsys: pytest.CaptureFixture[str]) -> None:
    strange = {**execution(run_id=RUN, execution="strange").to_json(), "ended": 1e18}
    used.create_once(layout.usage(RUN, "strange", "ended"), strange)
    value = json.loads(said(capsys, used.uri, "--by", "day", "--since", "2020-01-01", "--json"))
    assert (value["unreadable"], value["groups"]) == ([RUN], [])
