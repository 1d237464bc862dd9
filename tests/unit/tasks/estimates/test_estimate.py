"""The estimate of a run of the golden store: memory, times from a record of an earlier run, machines, and JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from data_contracts.resolved import Price
from tasks.estimates import estimate as module
from tasks.estimates.earlier_runs import Past, add
from tasks.estimates.estimate import Estimate, estimate
from tasks.run.resolve import resolved_runs
from tasks.run.run import Run, open_run
from tasks.run.spec_check import read_spec
from tests.unit.tasks.costs.test_charges import BEGAN, execution, gang, node
from tests.unit.tasks.estimates.test_memory import SIZES
from tests.unit.tasks.estimates.test_past import stage

pytestmark = pytest.mark.usefixtures("home")
BOOK = """\
version: 1
machines:
  here:
    devices: 1
    memory_bytes: 1000
    relative_speed: 1
    prices: [{date: 2026-01-01, currency: USD, per_hour: 36.0}]
  twice:
    devices: 1
    memory_bytes: 1000
    relative_speed: 2
    prices:
      - {date: 2026-01-01, currency: USD, per_hour: 54.0}
      - {date: 2026-01-01, currency: USD, per_hour: 18.0, term: spot, interruptions_per_hour: 0.5}
"""
STAGES = [stage("train", 0, 60), stage("verify", 60, 70), stage("promote", 70, 71)]
AHEAD = ["train", "verify", "promote"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """What the child was asked to measure; it is not started."""
    measured = Mock(return_value=(SIZES, ""))
    monkeypatch.setattr(module, "measure", measured)
    return measured


@pytest.fixture
def golden(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "book.yaml").write_text(BOOK)
    monkeypatch.setenv("TRAINWRIGHT_MACHINES", str(tmp_path / "book.yaml"))
    return Path(shutil.copytree(repository / "tests/golden/store-v1", tmp_path / "golden"))


def opened(golden: Path) -> Run:
    overrides = ["train.seed=10", "train.machine=here"]
    return open_run(read_spec(golden / "project/pipeline.yaml", overrides), store_uri=f"{golden}/store", recorded=False)


def of_a_past_run(run: Run) -> Past:
    """What an earlier run of the pipeline says that trained 44 steps in 44 of 60 seconds."""
    steps = {"met": BEGAN + 5, "last_step": 45, "samples": 1440, "steps_per_epoch": 15}
    used = execution(gangs=[gang(0, node(0, 1, 2, 10, 55, 58), **steps)], stages=STAGES, ended=BEGAN + 75)
    add(past := Past(), next(resolved_runs(run.store, run.spec.name)), [used])
    return past


def test_without_an_earlier_run_nothing_is_guessed(golden: Path, asked: Mock) -> None:
    found = estimate(opened(golden), AHEAD)
    assert (found.whole, found.amounts) == (None, None)
    assert found.recommendation.startswith("single fits on 1 × here with ")
    assert found.verdict.startswith("The cheapest that fits is 1 × aws-g5.xlarge (us-east-1) at 1.006 USD an hour; ")
    _, dataset, rows = asked.call_args.args
    assert (dataset.rows("train"), 32 in rows) == (492, True)


def test_a_run_that_trains_nothing_measures_nothing(golden: Path, asked: Mock) -> None:
    run = opened(golden)
    found = estimate(run, ["promote"])
    assert (found.needs, found.offers, asked.called) == ([], [], False)
    assert estimate(run, []) is None


def test_times_and_costs_from_an_earlier_run(golden: Path, asked: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    run = opened(golden)
    past = of_a_past_run(run)
    there = [one.__class__(**{**vars(one), "machine": "here"}) for one in past.trainings]
    monkeypatch.setattr(module, "past_of", lambda *_: past.__class__(**{**vars(past), "trainings": there}))
    price = Price(machine="here", per_hour=36.0, price_date="2026-01-01")
    run = Run(run.resolved.model_copy(update={"prices": {"here": price}}), run.store, recorded=False)
    found = estimate(run, AHEAD)
    times = {one.stage: None if one.time is None else round(one.time.expected) for one in found.stages}
    assert times == {"train": 60, "verify": 10, "promote": 1, "": 4}
    assert found.amounts == {"USD": (pytest.approx(0.75, abs=0.02),) * 3}
    # Half as long on the faster machine.
    spot = next(one for one in found.offers if one.term == "spot")
    assert (spot.machine, round(spot.time_s or 0)) == ("twice", 30)


def test_json_has_units_and_null_for_the_unknown(golden: Path, asked: Mock) -> None:
    found = estimate(opened(golden), AHEAD)
    assert isinstance(found, Estimate)
    value = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert value["memory"]["strategies"][0]["per_device_bytes"] > 0
    assert (value["memory"]["device_bytes"], value["time"], value["amounts"]) == (1000, None, None)
    assert [one["time_s"] for one in value["stages"]] == [None] * 3
