"""A month's figures stay when gc deletes its runs, are made once, and wait for runs that may still add to them."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from data_contracts.costs import MonthCosts
from data_contracts.errors import UsageError
from data_contracts.run_report import Cost, RunReport
from infra.garbage import Limits
from infra.store import Store, layout, open_store
from tasks.costs.months import (
    keep_months,
    kept_costs,
    month_costs,
    month_named,
)
from tasks.pages.cost_page import cost_page, cost_rows
from tests.unit.tasks.costs.test_charges import BEGAN, execution

RUN = "20251124-160000-abcdef"  # began at BEGAN
NOVEMBER = month_named("2025-11")
LATER = datetime(2025, 12, 2, 6, tzinfo=UTC)


def use(store: Store, run_id: str = RUN, what: str = "ended", **changes: object) -> None:
    one = execution(run_id=run_id, **changes)
    store.create_once(layout.usage(run_id, one.execution, what), one.to_json())


@pytest.mark.parametrize(
    "change", [{"usd_per_hour": -5.0}, {"usd_per_hour": 1.7e308}, {"devices": -8}, {"watts": 1e308}]
)
def test_a_run_whose_prices_somebody_changed_is_not_counted(store: Store, change: dict[str, float]) -> None:
    one = execution(run_id=RUN).to_json()
    for price in one["prices"].values():
        price.update(change)
    store.create_once(layout.usage(RUN, "e1", "ended"), one)
    assert month_costs(store, NOVEMBER, LATER).unreadable == [RUN]


@pytest.mark.parametrize("change", [{"finished": "soon"}, {"cost": Cost(node_seconds=1e15)}])
def test_a_report_of_an_earlier_version_that_cannot_be_is_a_damaged_record(
    change: dict[str, object], tmp_path: Path, repository: Path
) -> None:
    shutil.copytree(repository / "tests/golden/store-v1/store", tmp_path / "old")
    old = open_store(str(tmp_path / "old"))
    run_id, *others = old.list(layout.runs())
    report = old.read_as(layout.report(run_id), RunReport.from_json).model_copy(update=change)
    (tmp_path / "old" / layout.report(run_id)).unlink()
    old.create_once(layout.report(run_id), report.to_json())
    found = month_costs(old, month_named("2026-11"), datetime(2026, 12, 2, tzinfo=UTC))
    assert found.unreadable == [run_id]
    assert {line.run_id for line in found.lines} <= set(others)


def test_a_month_is_kept_once_it_is_over_and_stays(store: Store) -> None:
    use(store)
    assert (keep_months(store, NOVEMBER.end - timedelta(seconds=1)), keep_months(store, LATER)) == ([], ["2025-11"])
    assert keep_months(store, LATER) == []
    kept = kept_costs(store, NOVEMBER, LATER)
    assert sum(line.node_seconds for line in kept.lines) == pytest.approx(100)
    store.forget(layout.usage(RUN, "e1", "ended"))
    assert month_costs(store, NOVEMBER, LATER) == kept


@pytest.mark.parametrize("made", ["2025-11-30T12:00:00+00:00", "2999-01-01T00:00:00+00:00"])
def test_figures_of_a_month_that_is_not_over_are_nobodys(
    made: str, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    use(store)
    store.create_once(layout.month_costs("2025-11"), MonthCosts(month="2025-11", made=made, lines=[]).to_json())
    found = month_costs(store, NOVEMBER, NOVEMBER.end - timedelta(seconds=1))
    assert sum(line.node_seconds for line in found.lines) == pytest.approx(100)
    assert "costs/2025-11.json in" in caplog.text
    assert "was made before the month was over, and does not count; delete it." in caplog.text
    assert (kept_costs(store, NOVEMBER, LATER) is None) is (made < "2025-12")


def test_a_run_that_has_not_ended_holds_its_month_up_for_a_while(store: Store) -> None:
    use(store)
    use(store, "20251124-160100-abcdef", what="began", ended=None)
    store.pointer(layout.usage_beat("20251124-160100-abcdef", "e1")).swap(None, {"at": BEGAN + 50, "stage": "train"})
    assert keep_months(store, LATER) == []
    assert month_costs(store, NOVEMBER, LATER).so_far == ["20251124-160100-abcdef"]
    assert keep_months(store, LATER + timedelta(days=20)) == ["2025-11"]


def test_a_month_is_kept_before_gc_deletes_its_first_runs(store: Store) -> None:
    """With the default of gc, no run is deleted before its month is over; then the record waits for nobody."""
    keep = timedelta(seconds=Limits().keep_s)
    use(store, "20251101-000000-abcdef", began=NOVEMBER.start.timestamp(), ended=NOVEMBER.start.timestamp() + 9)
    use(store, "20251124-160100-abcdef", what="began", ended=None)
    store.pointer(layout.usage_beat("20251124-160100-abcdef", "e1")).swap(None, {"at": BEGAN + 50, "stage": "train"})
    assert keep >= timedelta(days=31)
    assert keep_months(store, NOVEMBER.start + keep - timedelta(hours=1), keep) == []
    assert keep_months(store, NOVEMBER.start + keep, keep) == ["2025-11"]


def test_a_charge_that_crosses_the_month_is_cut_at_its_end(store: Store) -> None:
    end = NOVEMBER.end.timestamp()
    use(store, "20251130-235900-abcdef", began=end - 60, ended=end + 40)
    seconds = [
        sum(line.node_seconds for line in month_costs(store, month, LATER).lines)
        for month in (NOVEMBER, month_named("2025-12"))
    ]
    assert seconds == [pytest.approx(60), pytest.approx(40)]


def test_a_month_that_a_run_worked_in_and_none_began_in_is_kept(store: Store) -> None:
    end = NOVEMBER.end.timestamp()
    use(store, "20251130-235900-abcdef", began=end - 60, ended=end + 3 * 86_400, stages=[], gangs=[])
    assert keep_months(store, datetime(2025, 12, 31, tzinfo=UTC)) == ["2025-11"]
    # In January, nobody used anything.
    assert keep_months(store, datetime(2026, 2, 2, tzinfo=UTC)) == ["2025-12"]
    store.forget(layout.usage("20251130-235900-abcdef", "e1", "ended"))
    kept = month_costs(store, month_named("2025-12"), datetime(2026, 2, 2, tzinfo=UTC))
    assert sum(line.node_seconds for line in kept.lines) == pytest.approx(3 * 86_400)


@pytest.mark.parametrize("name", ["2026-13", "2026-1", "26-01", "2026-10-01", "0000-01", "9999-12", "../2026"])
def test_what_is_no_month_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="--month: "):
        month_named(name)


def test_the_page_has_bars_and_figures_and_loads_nothing(store: Store) -> None:
    use(store, tags={"team": "<b>a</b>"}, pipeline="tiny")
    found = [month_costs(store, NOVEMBER, LATER)]
    text = cost_page(found)
    assert "2025-11" in text
    assert "&lt;b&gt;a" in text
    assert "<b>a" not in text
    assert text.count("<svg") == 3
    assert "://" not in text.replace("http://www.w3.org", "")
    [row] = cost_rows(found)
    assert row == ("tiny", "1", "0.03", "0.1000 USD")
    assert "No run used anything." in cost_page([])
