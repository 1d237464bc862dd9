"""verify: a clean process re-reads the checkpoint's bytes, rebuilds the module and loads the tensors."""

from __future__ import annotations

import contextlib

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint, Dataset
from infra.datasets import local_dataset
from infra.handoffs import read_handoff
from infra.launch.child import run_child
from infra.store import layout
from tasks.run import Run
from tasks.stage import Done, stage
from tasks.trained import trained_with

VERSION = 1


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
        _check_bytes(run, checkpoint)
        return Done(verified, "reused", f"step {checkpoint.step:,} was verified before", checkpoint.ref, mark)
    told = trained_with(run, checkpoint)
    request = {
        **run.store_request(),
        "checkpoint": checkpoint.to_json(),
        "train": told.train,
        "project": str(run.project(told.code)),
        "dataset_path": str(local_dataset(store, read_handoff(store, told.dataset, Dataset))) if told.dataset else "",
    }
    try:
        answer = run_child("training.verifier", request, project=run.project(told.code))
    except CorruptError as error:
        _quarantine(run, checkpoint, error)
        raise
    fact = {"schema_version": 1, "checkpoint": checkpoint.ref.to_json(), "stage_version": VERSION, **answer}
    _create(run, mark, {**fact, "provenance": run.provenance(checkpoint.ref)})
    read = f"{answer['bytes']:,} bytes re-read, {answer['tensors']} tensors loaded, all finite"
    sentence = f"step {checkpoint.step:,}: {read}"
    return Done(verified, "ran", sentence, checkpoint.ref)


def _check_bytes(run: Run, checkpoint: Checkpoint) -> None:
    try:
        run.store.verify(checkpoint.ref)
    except CorruptError as error:
        _quarantine(run, checkpoint, error)
        raise


def _quarantine(run: Run, checkpoint: Checkpoint, error: CorruptError) -> None:
    _create(run, layout.quarantined(checkpoint.ref.uri), {"schema_version": 1, "reason": error.message})


def _create(run: Run, path: str, value: dict) -> None:
    with contextlib.suppress(FileExistsError):
        run.store.create_json(path, value)
