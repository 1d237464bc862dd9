"""plan: what a run would reuse, stage by stage, and why not; nothing is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from data_contracts.canonical import digest
from data_contracts.errors import UsageError
from data_contracts.handoffs import Ref
from data_contracts.resolved import Resolved
from infra import registry
from infra.store import layout
from tasks import earlier
from tasks.evaluate import sets_to_score
from tasks.run import Run
from tasks.stage import STAGES
from tasks.train import find_training, training_key

SECTIONS = {
    "validate": ("data", "contract"),
    "shard": ("data", "shards"),
    "train": ("data", "shards", "train"),
    "verify": (),
    "evaluate": ("evaluate",),
    "promote": ("promote",),
}
PLACES = ("store", "tags", "retry")


@dataclass(frozen=True)
class Step:
    """One stage of a plan: `reuse`, `run`, `skip` or `resume`, and why."""

    name: str
    action: str
    why: str


def plan(run: Run) -> list[Step]:
    """What each stage would do, in order. After the first stage that must run, the next ones depend on its result."""
    steps: list[Step] = []
    changes = _changes(run)
    for stage in STAGES:
        blocked = next((step.name for step in steps if step.action in ("run", "resume")), None)
        if stage == "promote":
            steps.append(_promotion(run, blocked))
        elif blocked and not (stage == "shard" and blocked == "validate"):
            steps.append(Step(stage, "run", f"it depends on what {blocked} makes"))
        elif run.external and stage in ("validate", "shard"):
            steps.append(Step(stage, "skip", "data is external"))
        else:
            steps.append(_look(run, stage, changes))
    return steps


def _look(run: Run, stage: str, changes: list[str]) -> Step:
    try:
        return Step(stage, "reuse", _found(run, stage))
    except UsageError as error:
        if stage == "train":
            training, _, begun = find_training(run, training_key(run, earlier.earlier_dataset(run)))
            if begun:
                return Step(stage, "resume", f"{training} was begun and not finished")
        sections = SECTIONS[stage]
        mine = [change for change in changes if change.startswith((*sections, "code", "raw"))]
        since = f"; changed since the last run: {', '.join(mine)}" if mine else ""
        return Step(stage, "run", f"{error.message.rstrip('.')[0].lower()}{error.message.rstrip('.')[1:]}{since}")


def _found(run: Run, stage: str) -> str:
    """What the stage would reuse; UsageError if there is nothing."""
    match stage:
        case "validate":
            report = earlier.earlier_contract(run)
            return report.ref.uri if report and report.ref else ""
        case "shard":
            dataset = earlier.earlier_dataset(run)
            sets_to_score(run, dataset)  # made by the same stage
            return dataset.ref.uri if dataset else ""
        case "train":
            return earlier.earlier_checkpoint(run, verified=False).ref.uri
        case "verify":
            return layout.verified(earlier.earlier_checkpoint(run, verified=True).ref.uri)
    checkpoint, dataset = earlier.earlier_checkpoint(run, verified=True), earlier.earlier_dataset(run)
    return earlier.earlier_evaluation(run, checkpoint, dataset).ref.uri


def _promotion(run: Run, blocked: str | None) -> Step:
    name = f"{run.spec.model_name}@{run.spec.promote.alias}"
    found = registry.read_alias(run.store, run.spec.model_name, run.spec.promote.alias)
    if blocked:
        return Step("promote", "run", f"it depends on what {blocked} makes")
    if found is not None:
        version = registry.model_version(run.store, Ref.model_validate(found[0].value["model_version"]))
        if version.checkpoint.ref == earlier.earlier_checkpoint(run, verified=True).ref:
            return Step("promote", "reuse", f"{name} already is this candidate (version {found[1]})")
    return Step("promote", "run", "the gates are computed each time")


def _changes(run: Run) -> list[str]:
    """Fields of the spec, raw files and code that differ from the pipeline's last run, as dotted names."""
    before = _last_resolved(run)
    if before is None:
        return []
    now = run.resolved
    changed = [name for name in _differing(before.spec, now.spec) if not name.startswith(PLACES)]
    changed += [f"train.lightning.{name}" for name in _differing(before.lightning, now.lightning)]
    if digest([file.blake3 for file in before.files]) != digest([file.blake3 for file in now.files]):
        changed.append("raw files")
    if before.suite != now.suite:
        changed.append("contract.suite")
    if before.code_digest != now.code_digest:
        changed.append("code")
    return changed


def _last_resolved(run: Run) -> Resolved | None:
    for run_id in reversed(run.store.list(layout.runs())):
        path = layout.resolved(run_id)
        if run.store.exists(path):
            resolved = Resolved.from_json(run.store.read_json(path))
            if resolved.spec["name"] == run.spec.name:
                return resolved
    return None


def _differing(before: Any, now: Any, prefix: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        names: list[str] = []
        for key in sorted({*before, *now}):
            names += _differing(before.get(key), now.get(key), f"{prefix}.{key}" if prefix else str(key))
        return names
    return [] if before == now else [prefix]
