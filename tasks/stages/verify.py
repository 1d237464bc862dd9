"""verify: a clean process reads the checkpoint's bytes again, rebuilds the module and loads the tensors."""

from __future__ import annotations

import logging

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint, Dataset
from data_contracts.messages.children import VERIFY, VerifyRequest
from infra.gang.rank_files import Codes, launch_keys
from infra.records.handoffs import is_verified, read_handoff, verify_checkpoint
from infra.store import layout
from tasks.run.run import Run
from tasks.stages.placement import done_by_child, layout_in_plan, layout_of
from tasks.stages.stage import Stage, StageOutcome
from tasks.stages.train import train
from tasks.stages.trainings import trained_with

VERSION = 1
log = logging.getLogger("trainwright")


def find_mark(run: Run, mark: str, checkpoint: Checkpoint) -> StageOutcome[Checkpoint] | None:
    """The checkpoint, if it was verified before and its bytes still match the seal."""
    if not run.store.exists(mark) or not _is_own(run, mark, checkpoint):
        return None
    verify_checkpoint(run.store, checkpoint)
    is_verified(run.store, checkpoint.ref)
    sentence = f"step {checkpoint.step:,} was verified before"
    return StageOutcome(_verified(checkpoint), "reused", sentence, checkpoint.ref, mark)


def load_and_mark(run: Run, mark: str, checkpoint: Checkpoint) -> StageOutcome[Checkpoint]:
    """Load a committed checkpoint in a process of its own and mark it as verified.

    Raises:
        CorruptError: its bytes, names, shapes, types or values are not what training sealed.
    """
    store = run.store
    trained = trained_with(run.store, checkpoint)
    dataset = read_handoff(store, trained.dataset, Dataset) if trained.dataset else None
    request = VerifyRequest(
        store=run.store_address, checkpoint=checkpoint, train=trained.train, dataset=dataset, code=trained.code
    )
    try:
        gang = layout_of(run, "verify", trained.train, checkpoint)
        found = done_by_child(run, "verify", f"verify-{checkpoint.ref.id[:16]}", VERIFY, request, gang)
    except CorruptError as error:
        quarantine(run, error, checkpoint)
        raise
    facts = found.model_dump(mode="json", exclude={"schema_version"})
    fact = {"schema_version": 1, "checkpoint": checkpoint.ref.to_json(), "stage_version": VERSION, **facts}
    fact |= {"provenance": run.provenance(checkpoint.ref)}
    run.store.create_once(mark, _codes(run, checkpoint).coded(mark, fact))
    read = f"{found.bytes:,} bytes re-read, {found.tensors} tensors loaded, all finite"
    if found.loss is not None:
        read += f", loss {found.loss:.4g} on the held batch as recorded"
    elif found.raised:
        log.warning(
            "verify: the module's step raises %s outside a training; its loss on a held batch is not checked",
            found.raised,
        )
        read += ", its loss not compared: the step raised outside of a training"
    sentence = f"step {checkpoint.step:,}{gang.used}: {read}"
    return StageOutcome(_verified(checkpoint), "ran", sentence, checkpoint.ref)


def _codes(run: Run, checkpoint: Checkpoint) -> Codes:
    """The codes of a training that this machine has launched; without keys if it has not."""
    return Codes(tuple(launch_keys(run.store.uri, checkpoint.training)))


def _is_own(run: Run, mark: str, checkpoint: Checkpoint) -> bool:
    """Whether to believe a mark. A machine that launched the training verifies again if the mark has no right code."""
    codes = _codes(run, checkpoint)
    return not codes.keys or codes.are_right(mark, run.store.read_json(mark))


def ranks_of(run: Run, checkpoint: Checkpoint | None) -> str:
    """The ranks that would verify a checkpoint, for a plan."""
    return layout_in_plan(run, "verify", checkpoint)


def quarantine(run: Run, error: CorruptError, checkpoint: Checkpoint) -> None:
    """Set a corrupt checkpoint aside, with the reason."""
    run.store.create_once(layout.quarantined(checkpoint.ref.uri), {"schema_version": 1, "reason": error.message})


verify = Stage(
    "verify",
    sections=(),
    takes=(train,),
    key=lambda run, checkpoint: layout.verified(checkpoint.ref.uri),
    find=find_mark,
    make=load_and_mark,
    missing="the checkpoint that train handed over is not verified",
    corrupt=quarantine,
    ranks=ranks_of,
)


def _verified(checkpoint: Checkpoint) -> Checkpoint:
    return checkpoint.model_copy(update={"state": "verified"})
