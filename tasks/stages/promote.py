"""promote: computes the gates, makes a version, and moves the alias by compare-and-set, with a sealed receipt.

The first gate is `promote.export`: a candidate is exported, and the file's outputs must equal the checkpoint's. The
files are not kept; the comparison is recorded in the provenance of the receipt. Gates that compare values follow. Those
with `confidence` are asked only if all others are met: they spend test rows, which would be wasted on a candidate that
another gate refuses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from data_contracts.alias_moves import Force
from data_contracts.canonical import readable
from data_contracts.errors import (
    Diverged,
    GateNotMet,
    InsufficientEvidence,
    OutOfMemory,
    UsageError,
    UserCodeError,
)
from data_contracts.handoffs import Checkpoint, Dataset, Evaluation, ModelVersion, Receipt, Ref
from data_contracts.messages.commands import EXPORT, Exported, ExportRequest, Tolerance
from data_contracts.pipeline_spec import GateSpec
from data_contracts.pipeline_spec.promote import ExportGate
from data_contracts.records import GateResult
from infra import scratch
from infra.gang.remote_job import lay_out
from infra.models import registry
from infra.records.handoffs import read_handoff
from infra.records.receipts import without_hold
from infra.store import PointerMoved, Versioned
from tasks.gates.gates import is_undecided, judge, lacking, more_rows, names_measure, refusing
from tasks.run.run import Run
from tasks.stages import approval
from tasks.stages.approval import met_requirements, signing_key
from tasks.stages.evaluate import comparable, evaluate
from tasks.stages.placement import run_here
from tasks.stages.rollback import checked_reason, hold_of, on_hold
from tasks.stages.shard import comparison, find_dataset, sets_to_score, shard
from tasks.stages.stage import PlannedAction, Stage, StageOutcome
from tasks.stages.trainings import trained_with
from tasks.stages.verify import verify

if TYPE_CHECKING:
    from tasks.gates.set_rows import Sets

log = logging.getLogger("trainwright")
JUDGED = "the gates are computed each time"


def find_decision(
    run: Run,
    key: str,
    checkpoint: Checkpoint,
    dataset: Dataset | None,
    evaluation: Evaluation,
    force: str | None = None,
) -> StageOutcome[Receipt] | None:
    """An existing decision: this run promoted the candidate before it was cut off, or the alias already names it."""
    if checkpoint.state != "verified":
        raise UsageError(f"The checkpoint {checkpoint.ref.uri} is not verified.", remedy="Run `verify` first.")
    if force is not None:
        checked_reason(force)
    found = registry.read_alias(run.store, run.spec.model_name, run.spec.promote.alias)
    if found is None:
        return None
    return _decided(run, found, checkpoint, evaluation)


def move_alias(
    run: Run,
    key: str,
    checkpoint: Checkpoint,
    dataset: Dataset | None,
    evaluation: Evaluation,
    force: str | None = None,
) -> StageOutcome[Receipt]:
    """Make the candidate the champion if every gate is met, and a person approves if that is asked for.

    If the alias moved meanwhile, the new champion is evaluated and the gate computed again.

    Args:
        force: the reason to promote a checkpoint that is on hold, if it meets the gates; None: it is not promoted.

    Raises:
        GateNotMet: a gate was not met; the sentence says by how much. The alias stays.
        InsufficientEvidence: there are no rows to decide on, or they are not the champion's.
        OnHold: a person rolled the alias back from this checkpoint, and nobody released it.
        ApprovalPending: all gates are met, and nobody has answered yet.
        ApprovalRefused: a person refused, or nobody answered in time.
    """
    approval.refuse_alone(run)
    why = None if force is None else checked_reason(force)
    while True:
        try:
            return _promote(run, checkpoint, dataset, evaluation, why)
        except PointerMoved:
            continue


def judged_or_held(
    run: Run, checkpoint: Checkpoint, dataset: Dataset | None, evaluation: Evaluation, force: str | None = None
) -> PlannedAction:
    """Whether the gates will decide or the candidate is on hold, and why."""
    found = registry.read_alias(run.store, run.spec.model_name, run.spec.promote.alias)
    hold = hold_of(registry.holds(run.store, found[0] if found else None), checkpoint.ref.id)
    if hold is not None:
        return "run", f"it will not be promoted: on hold, because {hold.sentence}"
    ledger = rows_left(run)
    asks = "; then a person must approve" if approval.is_asked_for(run) else ""
    return "run", f"{JUDGED}{export_sentence(run)}{asks}{'; ' if ledger else ''}{ledger}"


def rows_left(run: Run) -> str:
    """What the test rows have decided and can still decide, for a plan; "" if no gate has `confidence`."""
    if all(gate.confidence is None for gate in run.spec.promote.gates):
        return ""
    from tasks.gates.evidence_gates import ledger_outlook

    return ledger_outlook(run, lambda: sets_to_score(run, None if run.external else find_dataset(run)))


def _when_resumed(run: Run) -> PlannedAction:
    question = approval.pending(run)
    waits = (
        f"; nobody has answered yet, and the deadline is {readable(question.deadline)}" if question is not None else ""
    )
    return "run", f"{JUDGED}{waits}"


promote = Stage(
    "promote",
    sections=("promote",),
    takes=(verify, shard, evaluate),
    key=lambda run, *_, **__: f"{run.spec.model_name}@{run.spec.promote.alias}",
    find=find_decision,
    make=move_alias,
    missing="this checkpoint is not promoted",
    ahead=judged_or_held,
    remark=rows_left,
    resumed=_when_resumed,
)


def _decided(
    run: Run, pointer: tuple[Versioned, int], checkpoint: Checkpoint, evaluation: Evaluation
) -> StageOutcome[Receipt] | None:
    if made := _made_before(run, pointer):
        return made
    champion = registry.model_version(run.store, Ref.model_validate(pointer[0].value["model_version"]))
    return _unchanged(run, champion, evaluation) if champion.checkpoint.ref.id == checkpoint.ref.id else None


def _promote(
    run: Run, checkpoint: Checkpoint, dataset: Dataset | None, evaluation: Evaluation, force: str | None
) -> StageOutcome[Receipt]:
    store, model, alias = run.store, run.spec.model_name, run.spec.promote.alias
    found = registry.read_alias(store, model, alias)
    theirs = None
    if found is not None:
        if decided := _decided(run, found, checkpoint, evaluation):
            return decided
        theirs = registry.model_version(store, Ref.model_validate(found[0].value["model_version"]))
    previous, champion = (theirs.version, theirs.ref) if theirs else (None, None)
    held = registry.holds(store, found[0] if found else None)
    hold = hold_of(held, checkpoint.ref.id)
    if hold is not None and force is None:
        raise on_hold(model, alias, hold, _stays(run, previous))
    key, required = signing_key(run), met_requirements(run, checkpoint, dataset)
    exports = exports_that_agree(run, checkpoint, _stays(run, previous))
    gates, evaluation, compared = _judged(run, checkpoint, dataset, evaluation, theirs)
    by = approval.approved(run, checkpoint, evaluation, gates, theirs, _state(found))
    provenance = run.provenance(checkpoint.ref, evaluation.ref)
    version = registry.write_version(store, model, checkpoint, evaluation.ref, {}, run.with_recipe(provenance))
    was = f", was {previous}" if previous else ""
    lifted = "" if hold is None else f'; {run.resolved.actor} lifted its hold: "{force}"'
    receipt = Receipt(
        decision="promoted",
        model=model,
        alias=alias,
        version=version.version,
        previous=previous,
        gates=gates,
        candidate=version.ref,
        evaluation=evaluation.ref,
        champion=champion,
        contamination=comparison(run),
        sentence=f"{model}@{alias} is version {version.version}{was}{checkpoint.passed_over}{lifted}{lacking(gates)}",
        quarantined_rows=0 if dataset is None else dataset.dropped_rows.get("quarantined", 0),
        approval=by,
        force=None if hold is None else Force(by=run.resolved.actor, reason=force or "", hold_reason=hold.sentence),
        required=required,
    )
    provenance = run.provenance(version.ref, evaluation.ref, champion, receipt.contamination, compared) | exports
    current, kept = found[0] if found else None, without_hold(held, checkpoint.ref.id)
    receipt = registry.move_alias(store, current, version, receipt, provenance, kept, key)
    return StageOutcome(receipt, "ran", receipt.sentence, version.ref)


def _state(pointer: tuple[Versioned, int] | None) -> str:
    """What a question about an alias is about: the seal of its newest receipt, "" before the first."""
    newest = registry.newest_receipt(pointer and pointer[0])
    return newest.seal if newest else ""


def _made_before(run: Run, pointer: tuple[Versioned, int]) -> StageOutcome[Receipt] | None:
    """This run's own promotion if it was made before the run was cut off, even if the alias has moved since."""
    receipt = registry.receipt_of_run(run.store, pointer[0], run.run_id, run.resolved.started)
    if receipt is None or receipt.ref is None:
        return None
    if pointer[0].value["receipt"] != receipt.ref.to_json():
        receipt = registry.moved_on(receipt, pointer[0])
    return StageOutcome(receipt, "ran", receipt.sentence, receipt.candidate)


def _unchanged(run: Run, champion: ModelVersion, evaluation: Evaluation) -> StageOutcome[Receipt]:
    alias = run.spec.promote.alias
    receipt = Receipt(
        decision="unchanged",
        model=champion.name,
        alias=alias,
        version=champion.version,
        previous=champion.version,
        candidate=champion.ref,
        evaluation=evaluation.ref,
        champion=champion.ref,
        contamination=comparison(run),
        sentence=f"{champion.name}@{alias} already is this checkpoint (version {champion.version})",
    )
    return StageOutcome(receipt, "reused", receipt.sentence, champion.ref, champion.ref.uri, in_plan=receipt.sentence)


def _judged(
    run: Run, checkpoint: Checkpoint, dataset: Dataset | None, evaluation: Evaluation, champion: ModelVersion | None
) -> tuple[list[GateResult], Evaluation, Ref | None]:
    """The gate results that allow the promotion, and the evaluations that they compare: candidate's and champion's."""
    specs, previous = run.spec.promote.gates, champion.version if champion else None
    champion_evaluation = None
    try:
        if champion is not None:
            compared = [gate.name for gate in specs if gate.compares and gate.name in evaluation.metrics]
            evaluation, champion_evaluation = comparable(
                run, checkpoint, evaluation, champion.checkpoint, dataset, compared
            )
        gates = judged(run, partial(sets_to_score, run, dataset), evaluation, champion_evaluation)
    except InsufficientEvidence as error:
        sentence = f"Not promoted: {error.message.rstrip('.')}; {_stays(run, previous)}."
        raise InsufficientEvidence(sentence, remedy=error.remedy, details=error.details) from None
    if missed := refusing(run, gates):
        why = "; ".join(gate.sentence for gate in missed)
        details = {"gates": [gate.to_json() for gate in gates]}
        count = f"{len(missed)} of {len(gates)} gates not met"
        if all(is_undecided(gate) for gate in missed):
            sentence = f"Not promoted, insufficient evidence for {len(missed)} of {len(gates)} gates: {why}"
            raise InsufficientEvidence(
                f"{sentence}; {_stays(run, previous)}.", remedy=more_rows(run, missed), details=details
            )
        raise GateNotMet(f"Not promoted, {count}: {why}; {_stays(run, previous)}.", details=details)
    return gates, evaluation, None if champion_evaluation is None else champion_evaluation.ref


def _stays(run: Run, previous: int | None) -> str:
    name = f"{run.spec.model_name}@{run.spec.promote.alias}"
    return f"{name} stays at version {previous}" if previous else "no version was made"


def judged(run: Run, sets: Callable[[], Sets], candidate: Evaluation, champion: Evaluation | None) -> list[GateResult]:
    """Each gate's result, in the order of the spec; errors as of `judge` and `judge_on_rows`.

    Args:
        sets: the sets that the evaluations score, as `SetScores` takes them.
    """
    gates = run.spec.promote.gates
    if not any(map(_looks_at_rows, gates)):
        return judge(gates, candidate, champion)
    from tasks.gates.evidence_gates import judge_on_rows  # SciPy and Numba take a second to import

    return judge_on_rows(run, sets, candidate, champion)


def _looks_at_rows(gate: GateSpec) -> bool:
    return bool(gate.confidence or gate.slice or gate.max_gap is not None or names_measure(gate))


def exports_that_agree(run: Run, checkpoint: Checkpoint, stays: str) -> dict[str, object]:
    """What was compared, for the receipt's provenance: `exports` by form; {} if no export is asked for.

    Args:
        stays: the end of the sentence that refuses the candidate.

    Raises:
        GateNotMet: the candidate cannot be exported, or an output differs by more than the tolerance.
    """
    made = {one.to: _compared(run, checkpoint, one, stays) for one in run.spec.promote.export}
    return {"exports": made} if made else {}


def split_with_rows(dataset: Dataset | None, split: str) -> str:
    """The wanted split if it has rows, else a split that has rows; without a dataset, the wanted split."""
    if dataset is None or dataset.rows(split):
        return split
    return next((name for name in ("test", "val", *dataset.splits) if dataset.rows(name)), split)


def export_sentence(run: Run) -> str:
    """What a plan says of the gate; "" if there is none."""
    forms = [one.to for one in run.spec.promote.export]
    return f"; before that, it is exported to {' and '.join(forms)} and compared" if forms else ""


def _compared(run: Run, checkpoint: Checkpoint, gate: ExportGate, stays: str) -> dict[str, object]:
    try:
        made = _export(run, checkpoint, gate)
    except (OutOfMemory, Diverged):
        raise
    except (GateNotMet, UserCodeError) as error:
        raise GateNotMet(
            f"Not promoted, the export to {gate.to} failed: {error.message.rstrip('.')}; {stays}.",
            remedy=error.remedy,
            user_traceback=error.user_traceback,
            details=error.details,
        ) from error
    largest = max(one.largest for one in made.agreements)
    log.info("  promote: exported to %s, the largest difference on %d rows is %.3g", gate.to, made.sample, largest)
    kept = ("inputs", "outputs", "agreements", "sample", "batch_sizes", "transform", "versions")
    return made.model_dump(mode="json", include=set(kept))


def _export(run: Run, checkpoint: Checkpoint, gate: ExportGate) -> Exported:
    trained = trained_with(run.store, checkpoint)
    dataset = None if trained.dataset is None else read_handoff(run.store, trained.dataset, Dataset)
    wanted = run.spec.evaluate
    with scratch.make("export") as folder:
        request = ExportRequest(
            store=run.store_address,
            checkpoint=checkpoint,
            train=trained.train,
            dataset=dataset,
            split=split_with_rows(dataset, wanted.split),
            targets=sorted({one.target for one in wanted.metrics.values() if one.target}),
            format=gate.to,
            folder=str(folder.path),
            tolerance=_tolerance(gate),
            code=trained.code,
        )
        here = request.at(lay_out(run.store, request.needs, run.project))
        return run_here(run, EXPORT, here, project=here.project)


def _tolerance(gate: ExportGate) -> Tolerance | None:
    if gate.atol is None and gate.rtol is None:
        return None
    return Tolerance(atol=gate.atol or 0.0, rtol=gate.rtol or 0.0)
