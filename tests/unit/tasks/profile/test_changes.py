"""The change for what bounds a step, as a table of settings."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from data_contracts.pipeline_spec import TrainSpec
from tasks.profile import SENTENCES, Bound, change_for
from tests.unit.tasks.profile.test_verdict import profile as usual_profile

LIGHTNING: dict[str, Any] = {"model": {"class_path": "net.Net"}, "trainer": {"max_epochs": 3}}
WITH_DATA = {**LIGHTNING, "data": {"class_path": "net.Data", "init_args": {"num_workers": 0}}}
BUSY_DATA = {**LIGHTNING, "data": {"class_path": "net.Data", "init_args": {"num_workers": 8}}}
HALF = {**LIGHTNING, "trainer": {"precision": "bf16-mixed"}}
# What bounds a step, settings and facts → part of what the change says, and the settings that it changes.
CASES: dict[str, tuple[Bound, dict[str, Any], dict[str, Any], str, dict[str, Any]]] = {
    "transform": ("data", {}, {"data_cause": "transform"}, "shards.transform", {}),
    "an unknown cause": ("data", {}, {"data_cause": ""}, "preparing batches takes longest", {}),
    "workers": ("data", {"lightning": WITH_DATA}, {}, "num_workers of train.lightning to 4 (it is 0)", {}),
    "workers enough": ("data", {"lightning": BUSY_DATA}, {"data_cause": "your loader"}, "your own data module", {}),
    "communication": (
        "communication",
        {"devices": 2},
        {"world_size": 2, "accumulate": 2},
        "train.global_batch_size 128",
        {"global_batch_size": 128, "micro_batch_size": 16},
    ),
    "checkpoints by epochs": ("checkpoint", {}, {}, "every_steps 200", {"every_steps": 200}),
    "checkpoints by time": ("checkpoint", {"checkpoint": {"every_s": 5}}, {}, "every_s 20", {"every_s": 20.0}),
    "logging": ("callbacks", {}, {}, "log_every_n_steps 100", {}),
    "compute": ("compute", {}, {}, "bf16-mixed", {}),
    "compute in half precision": ("compute", {"lightning": HALF}, {}, "`.compile()`", {}),
    "memory": ("memory", {}, {}, "`.compile()`", {}),
    "calls in micro-batches": (
        "calls",
        {"micro_batch_size": 16},
        {"accumulate": 4},
        "micro_batch_size 64",
        {"micro_batch_size": 64},
    ),
}


profile = partial(usual_profile, rows=64, traced=20, step_s=[1.0])


@pytest.mark.parametrize(("bound", "settings", "facts", "said", "changed"), CASES.values(), ids=CASES)
def test_the_change_for_what_bounds_a_step(bound, settings, facts, said, changed):
    spec = TrainSpec.model_validate({"lightning": LIGHTNING, "global_batch_size": 64, **settings})
    train = spec.model_dump(mode="json")
    before = spec.model_dump(mode="json")
    change = change_for(bound, profile(**facts), train, cores=4)
    assert said in change.what
    assert change.effect
    assert train == before  # the settings that were profiled are not touched
    after = TrainSpec.model_validate(change.train).model_dump(mode="json")
    assert {**after, **after["checkpoint"]}.items() >= changed.items()
    measured = change.batches_ready or change.compiled or after != before
    assert measured, "the change is measured, so it must change something"


def test_each_bound_has_a_change_but_copies_to_the_device():
    train = TrainSpec.model_validate({"lightning": LIGHTNING, "global_batch_size": 64}).model_dump(mode="json")
    assert {bound for bound in SENTENCES if change_for(bound, profile(), train, cores=4) is None} == {"transfer"}


def test_workers_are_set_where_the_data_module_takes_them():
    change = change_for("data", profile(), {"lightning": WITH_DATA, "global_batch_size": 64}, cores=2)
    assert change.train["lightning"]["data"]["init_args"] == {"num_workers": 2}
    assert WITH_DATA["data"]["init_args"] == {"num_workers": 0}
