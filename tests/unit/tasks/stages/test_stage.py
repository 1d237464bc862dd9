"""A stage is found, then reused or made; what it says is kept once. No store, no training: a stage of this test's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import Mock

import pytest

from data_contracts.errors import (
    ContractRejected,
    CorruptError,
    StorageUnavailable,
    TrainwrightError,
    UsageError,
    UserCodeError,
)
from data_contracts.handoffs import Ref
from data_contracts.run_report import StageResult
from infra.store import layout
from tasks.queries.plan import _look
from tasks.run.run import Run
from tasks.stages.stage import EarlierHandoffs, Stage, StageOutcome
from tests.support.runs import make_run
from tests.support.tiny import SPEC


@dataclass
class Shelf:
    """A stage whose results lie in a dictionary; it says what was asked of it."""

    keyed: bool = True
    lacks: str = ""
    error: Exception | None = None
    asked: list[str] = field(default_factory=list)
    made: dict[str, str] = field(default_factory=dict)

    def stage(self, *takes: Stage[..., Any]) -> Stage[..., Any]:
        def find(run: Run, key: str, *inputs: Any) -> StageOutcome[str] | None:
            self.asked.append(f"find {key}")
            if isinstance(self.error, CorruptError):
                raise self.error
            if key not in self.made:
                return None
            return StageOutcome(self.made[key], "reused", "there", Ref(uri="a", id="b", seal="c"), key,
                                lacks=self.lacks, error=self.error)  # type: ignore[arg-type]  # fmt: skip

        def make(run: Run, key: str, *inputs: Any) -> StageOutcome[str]:
            self.asked.append(f"make {key} of {inputs}")
            self.made[key] = "thing"
            return StageOutcome("thing", "ran", "made", Ref(uri="a", id="b", seal="c"))

        return Stage(
            "toy",
            ("data",),
            takes,
            lambda run, *inputs: None if run.external else f"key of {inputs}",
            find,
            make,
            "there is no toy",
            keyed=self.keyed,
            check=lambda run, *inputs: self.asked.append("check"),
            corrupt=lambda run, error, *inputs: self.asked.append("corrupt"),
        )


@pytest.fixture
def run() -> Run:
    return make_run(spec=SPEC)


def kept(run: Run) -> StageResult:
    return run.store.read_as(layout.stage(run.run_id, "toy"), StageResult.model_validate)


def test_a_result_is_made_once_and_reused(run: Run) -> None:
    shelf = Shelf()
    toy = shelf.stage()
    assert toy(run) == "thing"
    assert (run.live.results["toy"].status, kept(run).status) == ("ran", "ran")
    assert toy(run) == "thing"
    assert (run.live.results["toy"].status, run.live.results["toy"].reused_from) == ("reused", "key of ()")
    assert kept(run).status == "ran", "the first record stands"
    assert shelf.asked == ["find key of ()", "check", "make key of () of ()", "find key of ()"]


def test_a_result_that_lacks_something_is_completed(run: Run) -> None:
    shelf = Shelf(lacks="there is no lid", made={"key of ()": "thing"})
    toy = shelf.stage()
    step, _ = _look(run, toy, EarlierHandoffs(run), [])
    assert (step.action, step.why) == ("run", "there is no lid")
    assert toy(run) == "thing"
    assert shelf.asked[-1] == "make key of () of ()"


def test_hand_offs_that_decide_nothing_are_not_asked_for(run: Run) -> None:
    first = Shelf()
    shelf = Shelf(keyed=False)
    toy = shelf.stage(first.stage())
    toy(run, "input")
    assert shelf.asked == ["find key of (None,)", "check", "make key of (None,) of ('input',)"]
    assert EarlierHandoffs(run).handoff(toy) == "thing"
    assert first.asked == []


def test_a_later_verb_is_told_which_one_to_run_first(run: Run) -> None:
    first, then = Shelf(), Shelf()
    toy = first.stage()
    later = then.stage(toy)
    with pytest.raises(UsageError, match=r"^There is no toy\. Run `trainwright toy` with the same spec first\.$"):
        EarlierHandoffs(run).inputs(later)
    toy(run)
    earlier = EarlierHandoffs(run)
    assert (earlier.inputs(later), earlier.inputs(later)) == (["thing"], ["thing"])
    assert first.asked.count("find key of ()") == 3, "looked up once by one `EarlierHandoffs`"


def test_a_result_that_ends_the_run_ends_it_each_time(run: Run) -> None:
    toy = Shelf(error=ContractRejected("No."), made={"key of ()": "thing"}).stage()
    for _ in range(2):
        with pytest.raises(ContractRejected):
            toy(run)
        assert run.live.results["toy"].status == "rejected"
    with pytest.raises(UsageError, match="There is no toy"):
        EarlierHandoffs(run).handoff(toy)


def test_a_corrupt_result_is_set_aside_by_the_stage_and_only_named_by_a_plan(run: Run) -> None:
    shelf = Shelf(error=CorruptError("It is damaged."))
    toy = shelf.stage()
    with pytest.raises(CorruptError):
        EarlierHandoffs(run).stored(toy)
    assert shelf.asked == ["find key of ()"]
    with pytest.raises(CorruptError):
        toy(run)
    assert shelf.asked[-1] == "corrupt"
    assert run.live.results["toy"].status == "failed"


def test_without_a_key_a_stage_is_skipped() -> None:
    run, shelf = make_run(spec={"data": "external"}), Shelf()
    assert shelf.stage()(run) is None
    assert (run.live.results["toy"].status, shelf.asked) == ("skipped", [])


@pytest.mark.parametrize(
    ("kind", "status"), [(UsageError, "rejected"), (UserCodeError, "rejected"), (StorageUnavailable, "failed")]
)
def test_what_its_check_refuses_is_rejected_and_not_failed(run: Run, kind: type[TrainwrightError], status: str) -> None:
    check = Mock(side_effect=kind("it would fail later"))
    with pytest.raises(kind, match="later"):
        replace(Shelf().stage(), check=check)(run)
    assert run.live.results["toy"].status == status
