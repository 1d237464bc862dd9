"""Checkpoints that hold other weights than the module has or had when it was validated, as callbacks write."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from data_contracts.handoffs import Checkpoint, Dataset, Ref
from data_contracts.messages.children import StoreAddress, VerifyRequest
from infra.processes.child_main import Report
from tests.support.gang import Gang, answer, train_together
from tests.support.tiny import own_modules
from training.score import verify_worker

CALLBACKS = "lightning.pytorch.callbacks"
AVERAGING: dict[str, tuple[str, dict[str, Any]]] = {
    "ema": ("Plain", {"class_path": f"{CALLBACKS}.EMAWeightAveraging", "init_args": {"decay": 0.9}}),
    "swa": ("Plain", {"class_path": f"{CALLBACKS}.StochasticWeightAveraging", "init_args": {"swa_lrs": 0.1}}),
    "swa with batch norm": (
        "Classifier",
        {"class_path": f"{CALLBACKS}.StochasticWeightAveraging", "init_args": {"swa_lrs": 0.1}},
    ),
}
SELECT = {"metric": "val_loss", "mode": "min"}
# Of three epochs of six steps: steps at which a checkpoint with a `val_loss` is expected, and with a held loss.
VALIDATED = {"ema": [6, 12, 18], "swa": [6, 12], "swa with batch norm": [6, 12, 19], "every four": [6, 12, 18]}
ALL = {**VALIDATED, "swa": [6, 12, 18], "swa with batch norm": [6, 12, 18, 19], "every four": [4, 6, 8, 12, 16, 18]}


def checkpoints(run: Gang, generation: int = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer(run.scratch(generation), 0)["checkpoints"]
    return found


def verified_loss(run: Gang, checkpoint: dict[str, Any]) -> float | None:
    assert run.dataset is not None
    code, dataset = Ref(uri="code/a", id="a" * 64, seal="a" * 64), Dataset.from_json(run.dataset)
    request = VerifyRequest(
        store=StoreAddress(uri=run.store.uri),
        checkpoint=Checkpoint.from_json(checkpoint),
        train=json.loads(json.dumps(run.train)),
        code=code,
        dataset=dataset,
        paths={code.id: str(run.project), dataset.ref.id: str(run.dataset_folder)},
    )
    report: Report = lambda message: None  # noqa: E731
    with own_modules():
        return verify_worker.main(request, report).loss


def test_what_is_recorded_of_a_checkpoint_is_of_the_weights_that_it_holds(gang: Callable[..., Gang]) -> None:
    runs = {
        name: gang(name, model, trainer={"callbacks": [callback]}, select=SELECT)
        for name, (model, callback) in AVERAGING.items()
    }
    runs["every four"] = gang("every four", "Plain", select=SELECT, checkpoint={"every_steps": 4})
    own_data = {"data": {"class_path": "nets.RowsModule"}}
    ours, own = gang("ours", "Adversaries"), gang("own", "Adversaries", lightning=own_data)
    train_together([*runs.values(), ours, own])

    sealed = {name: checkpoints(run) for name, run in runs.items()}
    assert {name: [one["step"] for one in all_] for name, all_ in sealed.items()} == ALL
    with_value = {name: [one["step"] for one in all_ if "val_loss" in one["metrics"]] for name, all_ in sealed.items()}
    assert with_value == VALIDATED
    # Verify reads the weights again and compares the loss; the averages' loss differs from the current weights'.
    for name, run in runs.items():
        [sixth] = [one for one in sealed[name] if one["step"] == 6]
        held = run.store.manifest(sixth["ref"]["uri"]).settings["held"]
        assert verified_loss(run, sixth) == held["loss"], name
    ema = runs["ema"]
    resumed = ema.train_to_end(1, resume=sealed["ema"][0])
    assert resumed["ref"]["id"] == sealed["ema"][-1]["ref"]["id"]

    for run in (ours, own):
        found = [(one["step"], run.store.manifest(one["ref"]["uri"]).settings["samples"]) for one in checkpoints(run)]
        # Lightning's `global_step` counts the steps of both optimizers; samples are counted once.
        assert found == [(12, 96), (24, 192), (36, 288)]
    assert answer(ours.scratch(0), 0, "done")["plan"]["steps_per_epoch"] == 12
