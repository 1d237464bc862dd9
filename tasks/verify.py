"""verify: a clean process re-reads the checkpoint's bytes, rebuilds the module and loads the tensors."""

from __future__ import annotations

import contextlib
import logging

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint, Dataset
from infra.checkpoints import verify_checkpoint
from infra.handoffs import read_handoff
from infra.launch.errand import Place
from infra.store import layout
from tasks.placing import done_by_child
from tasks.run import Run
from tasks.stage import Done, stage
from tasks.trained import trained_with

VERSION = 1
log = logging.getLogger("trainwright")


@stage("verify")
def verify(run: Run, checkpoint: Checkpoint) -> Done[Checkpoint]:
    """Mark a committed checkpoint as verified, or as quarantined with the reason.

    Raises:
        CorruptError: its bytes, names, shapes, types or values are not what training sealed.
    """
    verified = checkpoint.model_copy(update={"state": "verified"})
    mark = layout.verified(checkpoint.ref.uri)
    store = run.store
    if store.exists(mark):
        _check_bytes(run, checkpoint, mark)
        return Done(verified, "reused", f"step {checkpoint.step:,} was verified before", checkpoint.ref, mark)
    told = trained_with(run, checkpoint)
    dataset = read_handoff(store, told.dataset, Dataset) if told.dataset else None
    request = {
        **run.store_request(),
        "checkpoint": checkpoint.to_json(),
        "train": told.train,
        "dataset": None if dataset is None else dataset.to_json(),
        "dataset_path": "",
    }
    places: list[Place] = [(["project"], told.code)]
    if dataset is not None:
        places.append((["dataset_path"], dataset))
    try:
        name = f"verify-{checkpoint.ref.id[:16]}"
        answer = done_by_child(run, "verify", name, "training.verifier", request, places)
    except CorruptError as error:
        _quarantine(run, checkpoint, error)
        raise
    fact = {"schema_version": 1, "checkpoint": checkpoint.ref.to_json(), "stage_version": VERSION, **answer}
    _create(run, mark, {**fact, "provenance": run.provenance(checkpoint.ref)})
    read = f"{answer['bytes']:,} bytes re-read, {answer['tensors']} tensors loaded, all finite"
    if answer["loss"] is not None:
        read += f", loss {answer['loss']:.4g} on the held batch as recorded"
    elif answer["raised"]:
        log.warning("verify: outside of a training the module's step raises %s", answer["raised"])
        read += ", its loss not compared: the step raised outside of a training"
    sentence = f"step {checkpoint.step:,}: {read}"
    return Done(verified, "ran", sentence, checkpoint.ref)


def _check_bytes(run: Run, checkpoint: Checkpoint, mark: str) -> None:
    try:
        verify_checkpoint(run.store, checkpoint)
        told = run.store.read_json(mark)
        if not isinstance(told, dict) or told.get("checkpoint") != checkpoint.ref.to_json():
            raise CorruptError(f"{mark} is of another checkpoint than {checkpoint.ref.uri} is now.")
    except CorruptError as error:
        _quarantine(run, checkpoint, error)
        raise


def _quarantine(run: Run, checkpoint: Checkpoint, error: CorruptError) -> None:
    _create(run, layout.quarantined(checkpoint.ref.uri), {"schema_version": 1, "reason": error.message})


def _create(run: Run, path: str, value: dict) -> None:
    with contextlib.suppress(FileExistsError):
        run.store.create_json(path, value)
