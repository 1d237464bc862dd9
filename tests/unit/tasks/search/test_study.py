"""The study of a search is made anew from its events, and then decides as if it had never been gone."""

from __future__ import annotations

from typing import Any

import pytest

from data_contracts.pipeline_spec.search import SearchSpec
from data_contracts.pipeline_spec.train import SelectSpec
from data_contracts.searches import SearchEvent, SearchRecord
from tasks.search.study import Study, combination, num_combinations

AT = "2026-11-30T00:00:00+00:00"
SPACE = {
    "train.lr": {"min": 1e-4, "max": 1e-1, "log": True},
    "train.width": {"min": 8, "max": 64, "step": 8},
    "train.optimizer": {"choices": ["sgd", "adam"]},
    "train.momentum": {"min": 0.0, "max": 0.99, "when": {"train.optimizer": "sgd"}},
}


def record(mode: str = "min", **spec: Any) -> SearchRecord:
    section = SearchSpec.model_validate({"space": SPACE, "budget": {"trials": 50}, **spec})
    select = SelectSpec.model_validate({"metric": "val_loss", "mode": mode})
    return SearchRecord(name="tiny", pipeline="tiny", spec=section, select=select, decides="", window=None, begun=AT)


def event(kind: Any, trial: int, **more: Any) -> SearchEvent:
    return SearchEvent(kind=kind, trial=trial, at=AT, **more)


def loss(settings: Any) -> float:
    """The smaller the rate, the better; adam is worth 1."""
    return float(settings["train.lr"]) + (settings["train.optimizer"] != "adam")


def history(searched: SearchRecord, trials: int) -> list[SearchEvent]:
    """Trials that finish one after another."""
    study, events = Study(searched, []), list[SearchEvent]()
    for _ in range(trials):
        asked = study.ask()
        assert asked is not None
        number, settings = asked
        ended = event("ended", number, state="finished", value=loss(settings))
        events += [event("asked", number, settings=settings), ended]
        study.take(ended)
    return events


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_study_made_anew_from_its_events_asks_the_same(sampler: str) -> None:
    searched = record(sampler=sampler)
    events = history(searched, 16)
    for length in (0, 2, 10, 24, 30):
        again = Study(searched, events[:length])
        assert again.ask() == (length // 2, events[length].settings)


def test_values_are_of_the_space_and_a_condition_is_kept() -> None:
    for one in history(record(), 40)[::2]:
        values = one.settings
        assert 1e-4 <= float(values["train.lr"]) <= 1e-1
        assert values["train.width"] in range(8, 65, 8)
        assert type(values["train.width"]) is int
        assert ("train.momentum" in values) == (values["train.optimizer"] == "sgd")


def test_tpe_learns_and_random_does_not() -> None:
    def mean_of_last(sampler: str) -> float:
        events = history(record(sampler=sampler), 40)
        return sum(one.value or 0.0 for one in events[-20:] if one.kind == "ended") / 10

    assert mean_of_last("tpe") < mean_of_last("random") / 2


def test_a_running_trial_is_not_asked_for_again() -> None:
    searched = record(space={"train.width": {"choices": [1, 2, 3, 4]}}, sampler="grid")
    study = Study(searched, [])
    asked = [study.ask() for _ in range(5)]
    assert [one and one[1]["train.width"] for one in asked] == [1, 2, 3, 4, None]


def test_a_grid_has_each_combination_once() -> None:
    space = {
        "train.a": {"choices": ["x", True]},
        "train.b": {"min": 1, "max": 3},
        "train.c": {"min": 0.0, "max": 0.5, "step": 0.25},
    }
    spec = record(space=space, sampler="grid").spec
    every = [tuple(combination(spec, number).values()) for number in range(num_combinations(spec))]
    assert every == [(a, b, c) for a in ("x", True) for b in (1, 2, 3) for c in (0.0, 0.25, 0.5)]


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("method", ["asha", "hyperband"])
def test_what_was_pruned_stays_so_and_the_next_is_compared_with_the_same(mode: str, method: str) -> None:
    """The first trial is finished; then the others are validated four times each, all of them once before any twice."""
    searched = record(mode, prune={"method": method, "first": 1, "factor": 2})
    study, events = Study(searched, []), list[SearchEvent]()

    def note(one: SearchEvent) -> None:
        study.take(one)
        events.append(one)

    def report(trial: int, validation: int) -> bool:
        again, value = Study(searched, events), float(trial * 5 % 13)
        pruned = study.is_pruned(trial, validation, value)
        assert again.is_pruned(trial, validation, value) == pruned
        events.append(event("reported", trial, validation=validation, value=value, pruned=pruned))
        return pruned

    for trial in range(13):
        asked = study.ask()
        assert asked is not None
        events.append(event("asked", trial, settings=asked[1]))
    for validation in (1, 2, 3, 4):
        report(0, validation)
    note(event("ended", 0, state="finished", value=0.0))
    going = list(range(1, 13))
    for validation in (1, 2, 3, 4):
        for trial in [trial for trial in going if report(trial, validation)]:
            note(event("ended", trial, state="pruned"))
            going.remove(trial)
    assert len(going) < 12
    if mode == "max":  # otherwise the first is the best
        assert max(range(13), key=lambda trial: trial * 5 % 13) in going


def test_with_a_larger_factor_fewer_go_on() -> None:
    def num_going_on(factor: int) -> int:
        study = Study(record("max", prune={"first": 1, "factor": factor}), [])
        for _ in range(30):
            study.ask()
        return sum(not study.is_pruned(trial, 1, float(trial * 7 % 30)) for trial in range(30))

    assert num_going_on(2) > num_going_on(3) > num_going_on(10) > 0


def test_a_warm_start_knows_what_another_search_found() -> None:
    known = history(record(), 30)
    best = min(one.value for one in known if one.value is not None)

    def mean(*earlier: list[SearchEvent]) -> float:
        study, values = Study(record(seed=9), [], earlier), []
        for _ in range(8):
            asked = study.ask()
            assert asked is not None
            values.append(loss(asked[1]))
            study.take(event("ended", asked[0], state="finished", value=values[-1]))
        return sum(values) / 8

    assert mean(known) < mean() / 2
    assert best < mean(known)


# Below 8, no multiple of 8, not a whole number, of another name, with a value that its condition excludes.
ELSEWHERE = [
    {"train.width": 4},
    {"train.width": 12},
    {"train.width": 16.0},
    {"train.depth": 3},
    {"train.momentum": 0.5},
]


@pytest.mark.parametrize("other", ELSEWHERE, ids=str)
def test_trials_of_another_space_are_not_taken_for_ones_of_this(other: dict[str, Any]) -> None:
    values = {"train.lr": 0.01, "train.width": 16, "train.optimizer": "adam"}

    def asked(settings: dict[str, Any]) -> Any:
        known = [event("asked", 0, settings=settings), event("ended", 0, state="finished", value=0.0)]
        return [Study(record(), [], [known] * 12).ask(), Study(record(), []).ask()]

    with_it, without = asked({**values, **other})
    assert with_it == without
    with_it, without = asked(values)
    assert with_it != without
