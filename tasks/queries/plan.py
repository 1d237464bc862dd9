"""plan: what a run would reuse, stage by stage, and why not; nothing is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from data_contracts.canonical import digest
from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import ShardsSpec
from data_contracts.pipeline_spec.train import TrainPlacement
from infra import code_bundle
from tasks.run.resolve import resolved_runs
from tasks.run.run import Run
from tasks.stages.approval import refuse_early
from tasks.stages.stage import EarlierHandoffs, PlannedAction, Stage
from tasks.stages.trainings import recorded

# Fields that no result depends on, so no stage runs again because of them.
NO_RESULT = {
    *("store", "tags", "retry", "train.checkpoint.every_s", "train.checkpoint.keep"),
    *("train.loader.memory_bytes", "train.loader.cache_bytes"),
    *(f"train.{name}" for name in TrainPlacement.model_fields),
    *(f"shards.{name}" for name in ShardsSpec.UNKEYED),
}
Line = Sequence[Stage[..., Any]]


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


def plan(run: Run, line: Line) -> list[Step]:
    """What each stage of the line would do, in order. A stage whose inputs are not made yet must run.

    UsageError if a training that would run cannot fit its machine, has fewer rows than a global batch or names columns
    that its dataset does not have, or if the ranks that would verify or score the checkpoint cannot load it, or if a
    requirement for promotion cannot be met; so does a run.
    """
    refuse_early(run)
    steps: list[Step] = []
    earlier, changes, ended = EarlierHandoffs(run), _changes(run), ""
    for stage in line:
        before = _before(stage)
        unmade = next((one.name for one in steps if one.name in before and one.action in ("run", "resume")), "")
        if ended:
            steps.append(Step(stage.name, "skip", f"the run ends with {ended}"))
        elif unmade and stage.keyed:
            steps.append(Step(stage.name, "run", f"it depends on the result of {unmade}{_remark(run, stage)}"))
        else:
            step, ended = _look(run, stage, earlier, changes)
            steps.append(step)
        if steps[-1].action == "reuse" or (stage.check is None and stage.ranks is None):
            continue
        inputs = [None] * len(stage.takes) if ended or unmade else earlier.inputs(stage)
        if stage.check is not None:
            stage.check(run, *inputs)
        if steps[-1].action == "run" and stage.ranks is not None and (ranks := stage.ranks(run, *inputs)):
            steps[-1] = replace(steps[-1], why=f"{steps[-1].why} ({ranks})")
    return steps


def plan_resumed(run: Run, line: Line) -> list[Step]:
    """What continuing a run would do, by the run's records. Only the stages themselves read anything again.

    UsageError if the run is to go back to a step that is not committed, or the training to go back in is finished.
    """
    return [Step(stage.name, *_resumed(run, stage)) for stage in line]


def _resumed(run: Run, stage: Stage[..., Any]) -> PlannedAction:
    if stage.resumed is not None and (outlook := stage.resumed(run)) is not None:
        return outlook
    ended = recorded(run, stage.name)
    if ended is None:
        return "run", "it has not ended yet"
    return "skip" if ended.status == "skipped" else "reuse", f"it ended before: {ended.sentence}"


def _before(stage: Stage[..., Any]) -> set[str]:
    """The stages whose hand-offs a stage takes, directly or through other stages."""
    return {one.name for one in stage.takes}.union(*map(_before, stage.takes))


def _look(run: Run, stage: Stage[..., Any], earlier: EarlierHandoffs, changes: list[str]) -> tuple[Step, str]:
    """What a stage with existing inputs would do, and its name if the result that it reuses ends the run."""
    try:
        done = earlier.stored(stage)
        if done is not None and not done.lacks:
            action = "skip" if done.status == "skipped" else "reuse"
            step = Step(stage.name, action, done.in_plan or done.reused_from or "")
            return step, "" if done.error is None else stage.name
        if done is None and stage.ahead is not None and (outlook := stage.ahead(run, *earlier.keyed_inputs(stage))):
            return Step(stage.name, *outlook), ""
        why = stage.missing if done is None else done.lacks
    except UsageError as error:
        why = error.message.rstrip(".")
    mine = [one for one in changes if one.startswith((*stage.sections, "code", "environment", "raw"))]
    since = f"; changed since the last run: {', '.join(dict.fromkeys(mine))}" if mine else ""
    return Step(stage.name, "run", f"{why[0].lower()}{why[1:]}{since}{_remark(run, stage)}"), ""


def _remark(run: Run, stage: Stage[..., Any]) -> str:
    remark = stage.remark(run) if stage.remark is not None else ""
    return f"; {remark}" if remark else ""


def _changes(run: Run) -> list[str]:
    """Fields of the spec, raw files and code that differ from the pipeline's last run, as dotted names."""
    before = next(resolved_runs(run.store, run.spec.name), None)
    if before is None:
        return []
    now = run.resolved
    changed = [name for name in _differing(before.spec, now.spec) if not _outer(name) & NO_RESULT]
    changed += [f"train.lightning.{name}" for name in _differing(before.lightning, now.lightning)]
    if digest([file.blake3 for file in before.files]) != digest([file.blake3 for file in now.files]):
        changed.append("raw files")
    if before.init_from != now.init_from and not any(name.startswith("train.init_from") for name in changed):
        changed.append("train.init_from")
    if before.suite != now.suite:
        changed.append("contract.suite")
    if before.code_digest != now.code_digest:
        changed += code_bundle.changed_parts(run.store, before.code, now.code) or ["code"]
    return changed


def _outer(name: str) -> set[str]:
    """A field and those that it lies in: `a.b.c` lies in `a.b` and `a`."""
    parts = name.split(".")
    return {".".join(parts[: length + 1]) for length in range(len(parts))}


def _differing(before: Any, now: Any, prefix: str = "") -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        names: list[str] = []
        for key in sorted({*before, *now}):
            names += _differing(before.get(key), now.get(key), f"{prefix}.{key}" if prefix else str(key))
        return names
    return [] if before == now else [prefix]
