"""verify against an attacker who seals what he changed: the loss on the held batch is another one."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save

from data_contracts.canonical import digest
from infra.settings import state_folder
from infra.store import layout, open_store
from tests.support.damage import overwrite
from tests.support.reseal import reseal
from tests.support.tiny import MODEL, answer, succeed, trainwright, write_project

pytestmark = pytest.mark.warm


@pytest.mark.parametrize("change", [pytest.param(0.0, marks=pytest.mark.slow), 1e-4])
def test_a_weight_that_was_changed_and_sealed_again_is_found_by_the_loss(change: float, tmp_path: Path) -> None:
    spec = write_project(tmp_path)
    for verb in ("validate", "shard", "train"):
        done = succeed(verb, spec, "--json")
    checkpoint = answer(done)["handoff"]
    store = tmp_path / ".trainwright"
    folder = store / checkpoint["ref"]["uri"]
    assert open_store(str(store)).manifest(checkpoint["ref"]["uri"]).settings["held"]["loss"] > 0
    tensors = load_file(folder / "weights-0.safetensors")
    tensors["net.0.weight"][0, 0] += change
    overwrite(folder / "weights-0.safetensors", save(tensors))
    result, records = layout.result(checkpoint["training"]), open_store(str(store))
    told = records.read_json(result)
    (store / result).unlink()
    records.create_json(result, {**told, "ref": reseal(store, checkpoint["ref"]["uri"]).to_json()})
    # As on a machine that did not launch the training, and so cannot check who wrote its records.
    (state_folder() / "launches" / digest([str(store), checkpoint["training"]])[:40]).unlink()
    done = trainwright("verify", spec)
    if change:
        assert done.returncode == 6, done.stderr
        assert "is not what was trained: the loss on the held batch is" in done.stderr
        assert (store / layout.quarantined(checkpoint["ref"]["uri"])).exists()
        # Not from step 0: from the checkpoint before it, and what is handed over then is what had been trained.
        done = succeed("train", spec, "--json")
        assert f"train continues from step 30 of {checkpoint['training']}" in done.stderr
        again = answer(done)["handoff"]
        assert (again["step"], again["ref"]["id"]) == (45, checkpoint["ref"]["id"])
        assert again["training"] != checkpoint["training"]
    else:
        assert done.returncode == 0, done.stderr
        assert "on the held batch as recorded" in done.stderr + done.stdout


def test_a_step_that_needs_what_a_hook_of_training_sets_up_is_not_compared_and_that_is_said(tmp_path: Path) -> None:
    spec = write_project(tmp_path)
    hook = "    def on_train_start(self):\n        self.scale = 2.0\n\n    def training_step"
    step = MODEL.replace("    def training_step", hook, 1).replace("return loss", "return loss * self.scale", 1)
    (tmp_path / "net.py").write_text(step)
    for verb in ("validate", "shard", "train", "verify"):
        done = succeed(verb, spec)
    assert "its loss not compared: the step raised outside of a training" in done.stderr + done.stdout
    assert "has no attribute 'scale'" in done.stderr
