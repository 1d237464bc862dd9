"""promote: the gate is computed, a version made, and the alias moved by compare-and-set, with a sealed receipt."""

from __future__ import annotations

from typing import Any

from data_contracts.errors import GateNotMet, UsageError
from data_contracts.handoffs import Checkpoint, Dataset, Evaluation, GateResult, Receipt, Ref
from infra import registry
from infra.store import PointerMoved, Store
from tasks.evaluate import score
from tasks.gates import judge
from tasks.proof import existing_version
from tasks.run import Run
from tasks.stage import Done, stage


@stage("promote")
def promote(run: Run, checkpoint: Checkpoint, dataset: Dataset | None, evaluation: Evaluation) -> Done[Receipt]:
    """Make the candidate the champion if every gate is met; a candidate that already is the champion is `unchanged`.

    If the alias moved meanwhile, the new champion is evaluated and the gate computed again.

    Raises:
        GateNotMet: a gate was not met; the sentence says by how much. The alias stays.
    """
    if checkpoint.state != "verified":
        raise UsageError(f"The checkpoint {checkpoint.ref.uri} is not verified.", remedy="Run `verify` first.")
    while True:
        try:
            return _promote(run, checkpoint, dataset, evaluation)
        except PointerMoved:
            continue


def rollback(store: Store, model: str, alias: str, to: int | None, provenance: dict[str, Any]) -> Receipt:
    """Move an alias back to version `to`, or to the one it named before; its receipt is kept like any other.

    Raises:
        UsageError: there is no such alias or version, nothing to go back to, or another moved the alias meanwhile.
    """
    found = registry.read_alias(store, model, alias)
    if found is None:
        raise UsageError(f"The model {model} has no alias {alias}.", remedy="See `trainwright status`.")
    current, version = found
    target = to if to is not None else _previous(store, model, alias, version)
    if target is None or target == version:
        raise UsageError(f"{model}@{alias} has no other version to go back to.", remedy="Name one with --to.")
    back = existing_version(store, model, target)
    store.verify(back.checkpoint.ref)
    receipt = Receipt(
        decision="promoted",
        model=model,
        alias=alias,
        version=target,
        previous=version,
        candidate=back.ref,
        evaluation=back.evaluation,
        champion=Ref.model_validate(current.value["model_version"]),
        sentence=f"{model}@{alias} went back from version {version} to version {target}",
    )
    try:
        return registry.move_alias(store, model, alias, current, back, receipt, provenance)
    except PointerMoved as error:
        raise UsageError(
            f"{model}@{alias} was moved by another process meanwhile; it was not rolled back.",
            remedy="Look at `trainwright show` and decide again.",
        ) from error


def _previous(store: Store, model: str, alias: str, version: int) -> int | None:
    """What the alias named before `version` was promoted first: going back twice goes back by two versions."""
    return next((one.previous for one in registry.history(store, model, alias) if one.version == version), None)


def _promote(run: Run, checkpoint: Checkpoint, dataset: Dataset | None, evaluation: Evaluation) -> Done[Receipt]:
    store, model, alias = run.store, run.spec.model_name, run.spec.promote.alias
    found = registry.read_alias(store, model, alias)
    previous = found[1] if found else None
    champion, champion_ref = None, None
    if found is not None and previous is not None:
        champion_ref = Ref.model_validate(found[0].value["model_version"])
        theirs = registry.model_version(store, champion_ref).checkpoint
        if theirs.ref.id == checkpoint.ref.id:
            newest = registry.history(store, model, alias)[-1]
            if newest.ref and store.manifest(newest.ref).provenance["run_id"] == run.run_id:
                # This very run moved the alias before it was cut off.
                return Done(newest, "ran", newest.sentence, champion_ref)
            receipt = Receipt(
                decision="unchanged",
                model=model,
                alias=alias,
                version=previous,
                previous=previous,
                candidate=champion_ref,
                evaluation=evaluation.ref,
                champion=champion_ref,
                sentence=f"{model}@{alias} already is this candidate (version {previous})",
            )
            return Done(receipt, "reused", receipt.sentence, champion_ref, champion_ref.uri)
        champion, _ = score(run, theirs, dataset)
    gates = judge(run.spec.promote.gates, evaluation, champion)
    if missed := [gate for gate in gates if not gate.met]:
        raise GateNotMet(_refusal(run, gates, missed, previous), details={"gates": [gate.to_json() for gate in gates]})
    provenance = run.provenance(checkpoint.ref, evaluation.ref)
    version = registry.write_version(store, model, checkpoint, evaluation.ref, {}, provenance)
    was = f", was {previous}" if previous else ""
    receipt = Receipt(
        decision="promoted",
        model=model,
        alias=alias,
        version=version.version,
        previous=previous,
        gates=gates,
        candidate=version.ref,
        evaluation=evaluation.ref,
        champion=champion_ref,
        sentence=f"{model}@{alias} is version {version.version}{was}{checkpoint.passed_over}",
    )
    provenance = run.provenance(version.ref, evaluation.ref, champion_ref)
    receipt = registry.move_alias(store, model, alias, found[0] if found else None, version, receipt, provenance)
    return Done(receipt, "ran", receipt.sentence, version.ref)


def _refusal(run: Run, gates: list[GateResult], missed: list[GateResult], previous: int | None) -> str:
    name = f"{run.spec.model_name}@{run.spec.promote.alias}"
    stays = f"{name} stays at version {previous}" if previous else "no version was made"
    why = "; ".join(gate.sentence for gate in missed)
    return f"Not promoted, {len(missed)} of {len(gates)} gates not met: {why}; {stays}."
