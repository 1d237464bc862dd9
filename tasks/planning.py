"""plan: what a run would reuse, stage by stage, and why not; nothing is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from data_contracts.canonical import digest
from data_contracts.errors import UsageError
from data_contracts.handoffs import Checkpoint, Ref
from infra import registry
from infra.launch.conductor import finished
from infra.store import layout
from tasks import earlier
from tasks.checkpoints import going_on, recorded, training_of
from tasks.columns import refuse_unknown
from tasks.evaluate import sets_to_score
from tasks.fitting import refuse_unfit
from tasks.resolving import resolved_runs
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

    @property
    def line(self) -> str:
        """One line for a person."""
        return f"{self.name:<9} {self.action:<7} {self.why}"


def plan(run: Run) -> list[Step]:
    """What each stage would do, in order. After the first stage that must run, the next ones depend on its result.

    UsageError if a training that would run cannot fit its machine, or names columns that its dataset does not have.
    """
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
        if stage == "train" and steps[-1].action != "reuse":
            if not blocked:
                refuse_unknown(run, earlier.earlier_dataset(run))
            refuse_unfit(run)
    return steps


def plan_resumed(run: Run) -> list[Step]:
    """What going on with a run would do, by what it recorded: nothing is read again, which each stage does itself.

    UsageError if it is to go back to a step that is not committed, or in a training that is finished.
    """
    return [_resumed(run, stage) for stage in STAGES]


def _resumed(run: Run, stage: str) -> Step:
    training = training_of(run) if stage == "train" else None
    if training is not None and run.store.exists(layout.result(training)):
        checkpoint = Checkpoint.from_json(run.store.read_json(layout.result(training)))
        if run.from_step is not None:
            raise finished(training, checkpoint)
        return Step(stage, "reuse", f"{training} is finished: step {checkpoint.step:,}")
    if training is not None:
        return _unfinished(run, training)
    ended = recorded(run, stage)
    if stage == "promote" or ended is None:
        return Step(stage, "run", "the gates are computed each time" if stage == "promote" else "it has not ended yet")
    return Step(stage, "skip" if ended["status"] == "skipped" else "reuse", f"it ended before: {ended['sentence']}")


def _unfinished(run: Run, training: str) -> Step:
    where = going_on(run.store, training, run.from_step)
    return Step("train", "resume", f"{training} was begun and not finished; {where}")


def _look(run: Run, stage: str, changes: list[str]) -> Step:
    try:
        return Step(stage, "reuse", _found(run, stage))
    except UsageError as error:
        if stage == "train":
            training, _, begun = find_training(run, training_key(run, earlier.earlier_dataset(run)))
            if begun:
                return _unfinished(run, training)
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
    before = next(resolved_runs(run.store, run.spec.name), None)
    if before is None:
        return []
    now = run.resolved
    changed = [name for name in _differing(before.spec, now.spec) if not name.startswith(PLACES)]
    changed += [f"train.lightning.{name}" for name in _differing(before.lightning, now.lightning)]
    if digest([file.blake3 for file in before.files]) != digest([file.blake3 for file in now.files]):
        changed.append("raw files")
    if before.init_from != now.init_from and not any(name.startswith("train.init_from") for name in changed):
        changed.append("train.init_from")
    if before.suite != now.suite:
        changed.append("contract.suite")
    if before.code_digest != now.code_digest:
        changed.append("code")
    return changed


def _differing(before: Any, now: Any, prefix: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        names: list[str] = []
        for key in sorted({*before, *now}):
            names += _differing(before.get(key), now.get(key), f"{prefix}.{key}" if prefix else str(key))
        return names
    return [] if before == now else [prefix]
