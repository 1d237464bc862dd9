"""A search starts, watches and ends trials. Their processes are stood in for here; real ones in `tests/integration`."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import (
    CorruptError,
    Diverged,
    Fenced,
    NodeLost,
    OverBudget,
    TrainwrightError,
    UsageError,
    UserCodeError,
)
from data_contracts.handoffs import Checkpoint, Ref
from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.pipeline_spec.search import Value
from data_contracts.run_report import RunReport
from data_contracts.searches import SearchEvent, SearchRecord
from infra.store import Store, layout, open_store
from infra.store.lease import LeaseKeeper
from tasks.budgets import budgets_for
from tasks.run.resolve import RunOptions
from tasks.run.run import open_run
from tasks.run.spec_check import read_spec
from tasks.search import search as searches
from tasks.search.search import Search, SearchResult, Trial, TrialProcess, Trials, begin, events_of, key_of
from tests.support.counted import away
from tests.support.tiny import SPEC, write_project
from tests.unit.tasks.queries.test_checkpoints import external, launched
from tests.unit.tasks.search.test_study import AT, record

REF = Ref(uri="trainings/k-0/checkpoints/1-g0", id="0" * 64, seal="0" * 64)


class FakeTrial:
    """Trains for as many looks as it has values, then ends as `outcome` says.

    Args:
        values: of the metric, at each validation.
        outcome: how its run ends: with its last value, an error, or killed (None), each time that it is started.
    """

    def __init__(self, values: list[float], outcome: list[TrainwrightError | str | None], inputs: str = "same") -> None:
        self._values, self._outcome, self._inputs = values, outcome, inputs
        self.continued, self.is_stopped, self._looks = 0, False, 0

    def start(self) -> None:
        self._outcome = self._outcome[1:]

    def stop(self) -> None:
        self.is_stopped = self._looks < len(self._values)

    def ended(self) -> dict[str, Any] | None:
        if self.is_stopped:
            return report("cancelled", 130)
        if self._looks < len(self._values):
            return None
        outcome = self._outcome[0]
        if outcome is None:
            return {}
        return report("trained", 0) if isinstance(outcome, str) else report("failed", outcome.exit_code, outcome)

    def values(self, metric: str) -> list[float]:
        assert metric == "val_loss"
        self._looks += 1
        return self._values[: self._looks]

    def handed_over(self) -> Checkpoint:
        metrics = {"val_loss": min(self._values)}
        facts = {"key": "k", "training": "trainings/k-0", "step": 1, "epoch": 0, "generation": 0, "world_size": 1}
        return Checkpoint(ref=REF, metrics=metrics, **facts)  # type: ignore[arg-type]

    def inputs_digest(self, with_data: bool) -> str:
        assert with_data
        return self._inputs


def report(verdict: Any, code: int, error: TrainwrightError | None = None) -> dict[str, Any]:
    failure = None if error is None else error.to_json()
    page = RunReport(
        run_id="r", pipeline="tiny", verdict=verdict, exit_code=code, sentence="", stages=[], error=failure
    )
    return page.to_json()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(searches, "LOOK_EVERY_S", 0.001)
    return open_store(str(tmp_path / "store"))


def search(
    store: Store, searched: SearchRecord, trials: Mapping[int, FakeTrial], refused: Any = lambda settings: ""
) -> SearchResult:
    keeper = LeaseKeeper(store, layout.search_lease(searched.name), "test")
    return Search(store, searched, lambda trial: trials[trial.number], refused).carry_out(keeper)  # type: ignore[arg-type, return-value]


def pruning(trials: int, **more: Any) -> SearchRecord:
    return record(budget={"trials": trials}, prune={"first": 1, "factor": 2}, **more)


def test_the_best_is_named_and_each_state_is_kept(store: Store) -> None:
    trials = {
        0: FakeTrial([5.0, 4.0, 3.0], ["trained"]),
        1: FakeTrial([9.0, 1.0, 0.5], ["trained"]),  # worse at the first rung
        2: FakeTrial([4.0, 3.0, 2.0], ["trained"]),
        3: FakeTrial([3.0], [UserCodeError("no such layer")]),
        4: FakeTrial([3.5], [Diverged("not finite")]),
    }
    found = search(store, pruning(5), trials)
    assert [trial.state for trial in found.trials] == ["finished", "pruned", "finished", "failed", "pruned"]
    assert found.best is not None
    assert (found.best.number, found.best.value, found.num_compared) == (2, 2.0, 4)
    assert found.trials[1].values == [9.0]
    assert found.trials[3].sentence == "no such layer"


@pytest.mark.parametrize("parallel", [1, 3])
def test_no_more_run_at_once_than_asked_for_and_none_waits(
    store: Store, parallel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search takes as many looks as its longest line of trials: a trial begins when one before it ends."""
    looks: list[float] = []
    monkeypatch.setattr(searches.time, "sleep", looks.append)
    lengths = [1 + number % 4 for number in range(12)]
    trials = {number: FakeTrial([1.0] * length, ["trained"]) for number, length in enumerate(lengths)}
    search(store, record(budget={"trials": 12}, parallel=parallel, prune={"first": 1000}), trials)
    free_at = [0] * parallel
    for length in lengths:
        heapq.heapreplace(free_at, free_at[0] + length + 1)  # its end is seen with the look after its last value
    assert len(looks) == max(free_at)


def test_what_ended_from_outside_is_continued_and_gives_up_at_last(store: Store) -> None:
    trials = {
        0: FakeTrial([1.0], [NodeLost("gone"), None, NodeLost("gone"), "trained"]),
        1: FakeTrial([1.0], [None] * 9),
    }
    found = search(store, record(budget={"trials": 2}, prune={"first": 9}), trials)
    assert [trial.state for trial in found.trials] == ["finished", "failed"]
    assert (trials[0].continued, trials[1].continued) == (3, 3)
    assert found.trials[1].sentence == "it was killed"


def test_a_search_over_its_budget_starts_no_further_trial(store: Store) -> None:
    trials = {0: FakeTrial([1.0], ["trained"]), 1: FakeTrial([1.0], [OverBudget("nothing is left")])}
    searched = record(budget={"trials": 3, "hours": 1.0}, prune={"first": 9})
    found = search(store, searched, trials)
    assert [trial.state for trial in found.trials] == ["finished", "running"]
    assert found.over == "nothing is left"
    # With a larger budget, it continues.
    found = search(store, searched, {number: FakeTrial([1.0], ["trained"]) for number in (1, 2)})
    assert [trial.state for trial in found.trials] == ["finished"] * 3


def test_an_error_that_every_trial_would_have_ends_the_search(store: Store) -> None:
    with pytest.raises(UsageError, match="was not logged"):
        search(store, pruning(9), {0: FakeTrial([], [UsageError("val_loss was not logged")])})


def test_code_that_always_raises_ends_the_search_at_the_third_trial(store: Store) -> None:
    trials = {number: FakeTrial([], [UserCodeError("boom")]) for number in range(9)}
    with pytest.raises(UserCodeError, match="boom"):
        search(store, pruning(9), trials)
    assert [one.kind for one in events_of(store, "tiny")] == ["asked", "ended"] * 3


def test_values_that_no_run_can_have_cost_nothing(store: Store) -> None:
    def refused(settings: Mapping[str, Value]) -> str:
        return "does not divide" if settings["train.optimizer"] == "sgd" else ""

    trials = {number: FakeTrial([1.0], ["trained"]) for number in range(8)}
    found = search(store, pruning(8), trials, refused)
    refused_ones = [trial for trial in found.trials if trial.settings["train.optimizer"] == "sgd"]
    assert {(trial.state, trial.sentence) for trial in refused_ones} == {("failed", "does not divide")}
    assert {trial.state for trial in found.trials} == {"failed", "finished"}


def test_other_code_or_data_in_between_ends_the_search(store: Store) -> None:
    trials = {0: FakeTrial([1.0], ["trained"]), 1: FakeTrial([1.0], ["trained"], inputs="other")}
    with pytest.raises(UsageError, match="cannot be compared"):
        search(store, pruning(3), trials)
    # It must not be the best of the trials of a later call.
    assert [trial.state for trial in Trials(store, pruning(3)).all] == ["finished", "failed"]


def test_a_search_that_was_killed_goes_on_with_its_trials(store: Store) -> None:
    """However it was killed, each trial is asked for once, and the next as if nothing had been."""
    searched = pruning(6, parallel=2)

    def trials() -> dict[int, FakeTrial]:
        return {number: FakeTrial([6.0 - number, 5.0 - number], ["trained"]) for number in range(6)}

    class Killed(BaseException):
        pass

    whole = search(open_store(f"{store.uri}-whole"), searched, trials())
    for after in range(1, 14):
        other = open_store(f"{store.uri}-{after}")

        def kill(trial: Trial, search: Search, place: Store = other, most: int = after) -> None:
            if len(events_of(place, "tiny")) >= most:
                raise Killed

        keeper = LeaseKeeper(other, layout.search_lease("tiny"), "test")
        made = trials()
        first = Search(other, searched, lambda trial, made=made: made[trial.number], on_change=kill)  # type: ignore[arg-type, misc]
        with pytest.raises(Killed):
            first.carry_out(keeper)
        found = search(other, searched, trials())
        assert [trial.settings for trial in found.trials][:2] == [trial.settings for trial in whole.trials][:2]
        asked = [one.trial for one in events_of(other, "tiny") if one.kind == "asked"]
        assert asked == list(range(6))
        assert all(trial.state != "running" for trial in found.trials)


def test_a_gap_in_the_events_is_damage(store: Store) -> None:
    search(store, pruning(1), {0: FakeTrial([1.0], ["trained"])})
    store.forget(layout.search_event("tiny", 1))
    with pytest.raises(CorruptError, match="is missing"):
        events_of(store, "tiny")


def test_of_two_that_write_the_same_event_one_is_fenced(store: Store) -> None:
    ours = Search(store, pruning(3), lambda trial: FakeTrial([1.0], ["trained"]))  # type: ignore[arg-type, return-value]
    theirs = SearchEvent(kind="asked", trial=0, at=AT, settings={"train.lr": 0.5})
    store.create_once(layout.search_event("tiny", 0), theirs.to_json())
    with pytest.raises(Fenced):
        ours.carry_out(LeaseKeeper(store, layout.search_lease("tiny"), "test"))


@pytest.mark.usefixtures("home")
def test_a_look_at_a_training_asks_for_its_checkpoints_alone(store: Store, tmp_path: Path) -> None:
    """A search looks at each of its trials once a second."""
    spec = external(write_project(tmp_path / "tiny"))
    run = open_run(read_spec(spec), store_uri=store.uri, options=RunOptions(key=key_of(record(), 0)))
    launched(run, 0, 0, run.run_id)
    apart, backend = away(store)
    process = TrialProcess(["true"], apart, key_of(record(), 0))
    assert process.values("val_loss") == []
    before = backend.alone
    assert process.values("val_loss") == []
    assert backend.alone - before == 1


def test_a_trial_that_was_pruned_stays_so_if_the_search_was_killed_before_it_ended(store: Store) -> None:
    """Otherwise it would train to its end, and be the best."""
    begun = [
        SearchEvent(kind="asked", trial=trial, at=AT, settings=settings)
        for trial, settings in enumerate([{"train.lr": 0.01, "train.width": 8, "train.optimizer": "adam"}] * 2)
    ]
    begun += [
        SearchEvent(kind="reported", trial=0, at=AT, validation=1, value=5.0),
        SearchEvent(kind="reported", trial=1, at=AT, validation=1, value=9.0, pruned=True),
    ]
    for number, one in enumerate(begun):
        store.create_once(layout.search_event("tiny", number), one.to_json())
    found = search(store, pruning(2), {0: FakeTrial([5.0, 4.0], ["trained"]), 1: FakeTrial([9.0, 0.5], ["trained"])})
    assert [trial.state for trial in found.trials] == ["finished", "pruned"]
    # Both had the same settings.
    assert found.num_compared == 1


VALID = {"train.lr": 0.01, "train.width": 8, "train.optimizer": "adam"}
DAMAGE: dict[str, dict[str, Any]] = {
    "another field": {
        "kind": "asked",
        "trial": 1,
        "settings": {**VALID, "train.lightning.model.class_path": "os.system"},
    },
    "a value that is not in the space": {"kind": "asked", "trial": 1, "settings": {**VALID, "train.width": 9000}},
    "a number that is not the next": {"kind": "asked", "trial": 7, "settings": VALID},
    "a trial that was never asked for": {"kind": "ended", "trial": 10**30, "state": "failed"},
    "an end that is none": {"kind": "ended", "trial": 0, "state": "running"},
    "finished without a value": {"kind": "ended", "trial": 0, "state": "finished"},
    "a report out of order": {"kind": "reported", "trial": 0, "validation": 2, "value": 1.0},
    "a report without a value": {"kind": "reported", "trial": 0, "validation": 1},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_an_event_that_cannot_be_is_damage(damage: str, store: Store) -> None:
    """Its settings would go onto the command line of a run."""
    events = [SearchEvent(kind="asked", trial=0, at=AT, settings=VALID), SearchEvent(at=AT, **DAMAGE[damage])]
    for number, one in enumerate(events):
        store.create_once(layout.search_event("tiny", number), one.to_json())
    with pytest.raises(CorruptError, match="events/1.json does not follow"):
        Trials(store, pruning(3))


def test_an_error_of_some_values_does_not_end_a_search_that_has_a_finished_trial(store: Store) -> None:
    trials = {0: FakeTrial([1.0], ["trained"]), 1: FakeTrial([], [UsageError("no")]), 2: FakeTrial([1.0], ["trained"])}
    assert [trial.state for trial in search(store, pruning(3), trials).trials] == ["finished", "failed", "finished"]


def spec_of(**search: Any) -> PipelineSpec:
    section = {"space": {"train.seed": {"choices": [1, 2]}}, "budget": {"trials": 3}, **search}
    train = {**SPEC["train"], "select": {"metric": "val_loss", "mode": "min"}}
    return PipelineSpec.model_validate({**SPEC, "train": train, "search": section})


def test_a_larger_budget_holds_from_then_on_and_the_trials_stay(store: Store) -> None:
    first = begin(store, spec_of(budget={"trials": 3, "hours": 1.0}), "tiny", None, "same")
    more = begin(store, spec_of(budget={"trials": 9, "hours": 100.0}, parallel=4), "tiny", None, "same")
    assert (more.identity, more.begun) == (first.identity, first.begun)
    budgets = budgets_for(store, {"search": "tiny"})
    assert budgets is not None
    assert [one.limit.hours for one in budgets.budgets.values()] == [100.0]
    assert begin(store, spec_of(budget={"trials": 9, "hours": 100.0}, parallel=4), "tiny", None, "same") == more
    assert len(store.list(layout.search_records("tiny"))) == 2


@pytest.mark.parametrize("change", [{"decides": "other"}, {"seed": 2}, {"space": {"train.seed": {"choices": [1, 3]}}}])
def test_a_search_is_not_continued_with_another_spec(store: Store, change: dict[str, Any]) -> None:
    begin(store, spec_of(), "tiny", None, "same")
    section = {name: value for name, value in change.items() if name != "decides"}
    with pytest.raises(UsageError, match="with another spec"):
        begin(store, spec_of(**section), "tiny", None, change.get("decides", "same"))


def test_a_warm_start_needs_a_search_that_searches_for_the_same(store: Store) -> None:
    begin(store, spec_of(), "older", None, "same")
    for name, mode, why in (
        ("none", "min", "no search"),
        ("tiny", "min", "itself"),
        ("older", "max", "something else"),
    ):
        with pytest.raises(UsageError, match=why):
            Search(store, record(mode, warm_start=[name]), lambda trial: FakeTrial([], []))  # type: ignore[arg-type, return-value]
