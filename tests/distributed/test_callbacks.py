"""Every callback that Lightning ships works in a training, is ignored with a word, or is refused before one begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning.pytorch.callbacks as shipped
import pytest

from data_contracts.errors import SpecError
from data_contracts.lightning_config import check_lightning
from data_contracts.pipeline_spec import PipelineSpec
from tests.support.gang import Gang, answer, train_together
from tests.support.tiny import SPEC

# With the arguments that they need.
WORKS: dict[str, dict[str, Any]] = {
    "BackboneFinetuning": {"unfreeze_backbone_at_epoch": 1},
    "BasePredictionWriter": {"write_interval": "batch"},
    "Callback": {},
    "DeviceStatsMonitor": {},
    "EarlyStopping": {"monitor": "val_loss"},
    "EMAWeightAveraging": {},
    "LambdaCallback": {},
    "LearningRateMonitor": {},
    "ModelPruning": {"pruning_fn": "l1_unstructured", "amount": 0.3},
    "ModelSummary": {},
    "RichModelSummary": {},
    "StochasticWeightAveraging": {"swa_lrs": 0.1},
    "ThroughputMonitor": {"batch_size_fn": "nets.rows_of"},
    "WeightAveraging": {},
}
IGNORED = ("ProgressBar", "RichProgressBar", "TQDMProgressBar")
REFUSED = (
    "BaseFinetuning",
    "BatchSizeFinder",
    "Checkpoint",
    "GradientAccumulationScheduler",
    "LearningRateFinder",
    "ModelCheckpoint",
    "OnExceptionCheckpoint",
    "SpikeDetection",
    "Timer",
)
NOT_SHARDED = (
    "BackboneFinetuning",
    "EMAWeightAveraging",
    "ModelPruning",
    "StochasticWeightAveraging",
    "WeightAveraging",
)


def entry(name: str) -> dict[str, Any]:
    return {"class_path": f"lightning.pytorch.callbacks.{name}", "init_args": WORKS.get(name, {})}


def check(name: str, **train: Any) -> list[str]:
    """What plan says of a callback."""
    trainer = {"max_epochs": 1, "callbacks": [{"class_path": "mine.Own"}, entry(name)]}
    lightning = {"model": {"class_path": "net.Net"}, "trainer": trainer}
    spec = PipelineSpec.model_validate({**SPEC, "train": {**SPEC["train"], "lightning": lightning, **train}})
    return check_lightning(lightning, spec)


def test_each_callback_that_lightning_ships_is_known_here() -> None:
    assert {*WORKS, *IGNORED, *REFUSED} == {*shipped.__all__}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_place_in_a_training_is_refused_where_it_is_named(name: str) -> None:
    with pytest.raises(SpecError, match=rf"trainer\.callbacks\.1: lightning\.pytorch\.callbacks\.{name} is not used: "):
        check(name)


@pytest.mark.parametrize("name", NOT_SHARDED)
def test_what_takes_parameters_for_whole_is_refused_where_they_are_sharded(name: str) -> None:
    assert check(name) == []
    with pytest.raises(SpecError, match=r"trainer\.callbacks\.1: .* is not used: "):
        check(name, strategy="fsdp", devices=2)


def test_what_would_train_several_ranks_apart_is_refused() -> None:
    with pytest.raises(SpecError, match="several ranks would not exchange the gradients"):
        check("BackboneFinetuning", strategy="ddp", devices=2)


@pytest.mark.slow
def test_the_others_work_or_are_ignored_with_a_word(gang: Callable[..., Gang]) -> None:
    for name in IGNORED:
        said = f"trainer.callbacks: lightning.pytorch.callbacks.{name} has no effect: Trainwright reports the progress."
        assert check(name) == [said]
    runs = {
        name: gang(name, "Backboned", ranks=1, trainer={"max_epochs": 2, "callbacks": [entry(name)]})
        for name in (*WORKS, *IGNORED)
    }
    train_together(list(runs.values()))
    failed = {name: run.log()[-2000:] for name, run in runs.items() if answer(run.scratch(0), 0, "done") is None}
    assert failed == {}
    # Resumed where the backbone is trained already: it is trained on.
    tuned = runs["BackboneFinetuning"]
    first, last = answer(tuned.scratch(0), 0)["checkpoints"]
    assert tuned.train_to_end(1, resume=first)["ref"]["id"] == last["ref"]["id"]
