"""Lets a candidate that meets all gates stand under the alias `canary`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from data_contracts.alias_moves import ALIAS, CanaryTerms, Hold
from data_contracts.errors import OnHold
from data_contracts.handoffs import Checkpoint, Evaluation, ModelVersion, Receipt, Ref
from data_contracts.pipeline_spec.contract import length_of
from data_contracts.pipeline_spec.promote import CanarySpec
from data_contracts.times import readable
from infra.audit import now
from infra.models import canaries, registry
from infra.records.receipts import chain, has_ended, read_receipt, without_hold
from infra.store import PointerMoved, layout
from tasks.run.run import Run
from tasks.run.spec_check import why_no_fresh_rows
from tasks.stages.canary.canary_tally import check_rows, metric_digest
from tasks.stages.decisions.requirements import signing_key
from tasks.stages.stage import StageOutcome


def check_start(run: Run, checkpoint: Checkpoint, evaluation: Evaluation, force: str | None, stays: str) -> Hold | None:
    """The hold of a checkpoint that was withdrawn as a canary and is forced to stand again; None if it has none.

    Raises:
        UsageError: the canary's metric has no value for each row.
        OnHold: the checkpoint was withdrawn, and nobody released it.
    """
    wanted = run.spec.promote.canary
    assert wanted is not None
    check_rows(evaluation, wanted.metric)
    found = registry.read_alias(run.store, run.spec.model_name, ALIAS)
    held = registry.holds(run.store, found and found[0])
    hold = next((one for one in held if one.checkpoint_id == checkpoint.ref.id), None)
    if hold is not None and force is None:
        command = f"trainwright release {run.spec.model_name}@{ALIAS} {hold.version} --reason WHY"
        raise OnHold(
            f"Not promoted: this checkpoint is on hold, because {hold.sentence}; {stays}.",
            remedy=f"Lift the hold with `{command}` and run again, or train other weights.",
            details={"held": hold.to_json()},
        )
    return hold


def stand(
    run: Run,
    champion: ModelVersion,
    version: ModelVersion,
    receipt: Receipt,
    provenance: dict[str, Any],
    more: str = "",
) -> StageOutcome[Receipt]:
    """Let a version stand as the canary of a champion.

    Args:
        receipt: as it would be if the version were promoted now.
        more: what else to say about the candidate, as the end of a sentence.

    Raises:
        PointerMoved: another process moved the alias, or a canary stands already.
    """
    store, model, wanted = run.store, run.spec.model_name, run.spec.promote.canary
    assert wanted is not None
    found = registry.read_alias(store, model, ALIAS)
    current = None if found is None else found[0]
    if current is not None and not has_ended(current):
        raise PointerMoved(layout.alias(model, ALIAS), current)
    terms = _terms(run, wanted, champion)
    stands = receipt.model_copy(
        update={
            "decision": "canary",
            "alias": ALIAS,
            "previous": None,
            "sentence": f"{model}@{ALIAS} is version {version.version} until {readable(terms.until)}: "
            f"{wanted.min_rows:,} fresh rows or more must show that it can replace {model}@{terms.alias}, which stays "
            f"at version {champion.version}{more}",
            "terms": terms,
        }
    )
    kept = without_hold(registry.holds(store, current), version.checkpoint.ref.id)
    made = registry.move_alias(store, current, version, stands, provenance, kept, signing_key(run))
    return StageOutcome(made, "ran", made.sentence, version.ref)


def _terms(run: Run, wanted: CanarySpec, champion: ModelVersion) -> CanaryTerms:
    """What is agreed now."""
    since = now()
    until = (datetime.fromisoformat(since) + length_of(wanted.within)).isoformat(timespec="seconds")
    name = wanted.metric.rpartition("/")[2]
    return CanaryTerms(
        alias=run.spec.promote.alias,
        against=champion.version,
        metric=wanted.metric,
        mode=run.spec.evaluate.metrics[name].mode,
        metric_digest=metric_digest(run, wanted.metric),
        bound=wanted.bound,
        confidence=wanted.confidence,
        min_rows=wanted.min_rows,
        since=since,
        until=until,
    )


def stood(run: Run) -> StageOutcome[Receipt] | None:
    """The receipt by which this run let its candidate stand before it was cut off; None if it did not."""
    found = registry.read_alias(run.store, run.spec.model_name, ALIAS)
    if found is None:
        return None
    receipt = registry.receipt_of_run(run.store, found[0], run.run_id, run.resolved.started)
    if receipt is None or receipt.decision != "canary":
        return None
    return StageOutcome(receipt, "ran", receipt.sentence, receipt.candidate)


def ended_by(run: Run) -> Receipt | None:
    """The receipt of the end of a canary that this run ended; None if it ended none."""
    found = registry.read_alias(run.store, run.spec.model_name, ALIAS)
    newest = None if found is None else Ref.model_validate(found[0].value["receipt"])
    for manifest in chain(run.store, newest):
        if manifest.provenance.get("run_id") != run.run_id:
            return None
        receipt = read_receipt(run.store, manifest)
        if receipt.decision == "ended":
            return receipt
    return None


def outlook(run: Run) -> str:
    """What a plan says of a canary, as the end of a sentence; "" without `promote.canary`."""
    wanted, model = run.spec.promote.canary, run.spec.model_name
    if wanted is None or registry.read_alias(run.store, model, run.spec.promote.alias) is None:
        return ""
    canary, why = canaries.standing_canary(run.store, model), why_no_fresh_rows(run.spec)
    more = "" if why is None else f". {why.removesuffix('.')}"
    if canary is not None:
        return f"; first the fresh rows are scored for version {canary.version.version}, which stands as canary{more}"
    return f"; then the candidate stands as canary, for {wanted.within} at most{more}"
