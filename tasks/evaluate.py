"""evaluate: score one checkpoint on the run's sets and keep the outcomes; the champion is scored on the same rows."""

from __future__ import annotations

from data_contracts.canonical import reuse_key
from data_contracts.errors import UsageError
from data_contracts.handoffs import Checkpoint, Dataset, Evaluation, Ref
from infra import registry
from infra.handoffs import read_handoff
from infra.launch.errand import Place
from tasks.placing import done_by_child
from tasks.run import Run
from tasks.shard import find_dataset
from tasks.stage import Done, stage
from tasks.trained import trained_with

VERSION = 2


@stage("evaluate")
def evaluate(run: Run, checkpoint: Checkpoint, dataset: Dataset | None) -> Done[Evaluation]:
    """Score the candidate, and the champion as the alias named it when the run began, on the same rows.

    Raises:
        UsageError: a metric or split that does not exist.
        UserCodeError: the module or the metric raised.
    """
    evaluation, reused = score(run, checkpoint, dataset)
    if run.resolved.champion is not None:
        score(run, registry.model_version(run.store, run.resolved.champion).checkpoint, dataset)
    values = ", ".join(f"{name} {metric.value:.4f}" for name, metric in evaluation.metrics.items())
    reused_from = evaluation.ref.uri if reused else None
    return Done(evaluation, "reused" if reused else "ran", values, evaluation.ref, reused_from)


Sets = dict[str, tuple[Dataset, str]]


def score(run: Run, checkpoint: Checkpoint, dataset: Dataset | None) -> tuple[Evaluation, bool]:
    """The evaluation of a checkpoint on this run's sets, and whether it was reused."""
    sets = sets_to_score(run, dataset)
    told = trained_with(run, checkpoint)
    key = evaluation_key(run, checkpoint, sets)
    found = run.store.newest("evaluations", key)
    if found is not None:
        return read_handoff(run.store, found, Evaluation), True
    parents: list[Ref] = [checkpoint.ref, *(d.ref for d, _ in sets.values())]
    request = {
        **run.store_request(),
        "uri": run.store.next_attempt("evaluations", key),
        "key": key,
        "checkpoint": checkpoint.to_json(),
        "train": told.train,
        "evaluate": run.spec.evaluate.result,
        "sets": {name: {"dataset": d.to_json(), "split": split} for name, (d, split) in sets.items()},
        "data_external": run.external,
        "settings": {"checkpoint": checkpoint.ref.id, "sets": {name: [d.ref.id, s] for name, (d, s) in sets.items()}},
        "provenance": run.provenance(*parents),
    }
    places: list[Place] = [(["project"], told.code), (["metrics_project"], run.resolved.code)]
    places += [(["sets", name, "path"], d) for name, (d, _) in sets.items()]
    answer = done_by_child(run, "evaluate", f"evaluate-{key[:16]}", "training.evaluator", request, places)
    return Evaluation.from_json(answer), False


def evaluation_key(run: Run, checkpoint: Checkpoint, sets: Sets) -> str:
    """Reuse key of an evaluation: the metrics and their code, the sets, and the checkpoint.

    The checkpoint's id stands for how its module and batches are made and for the code that they come from.
    """
    wanted = run.spec.evaluate.result
    inputs = {"checkpoint": checkpoint.ref.id, "sets": {name: [d.ref.id, split] for name, (d, split) in sets.items()}}
    classes = [metric.class_path or "" for metric in run.spec.evaluate.metrics.values()]
    users = any(path and not path.startswith("torchmetrics.") for path in classes)
    settings = {**wanted, "sets": sorted(wanted["sets"])}
    return reuse_key("evaluate", VERSION, settings, inputs, run.resolved.code_digest if users else None)


def sets_to_score(run: Run, dataset: Dataset | None) -> Sets:
    """The sets to score by name ("" is the spec's own split), each a dataset and the split of it.

    UsageError if `shard` has not made the dataset of a set.
    """
    if dataset is None:
        return {}
    wanted = run.spec.evaluate
    sets = {"": (dataset, wanted.split)}
    for name, one in wanted.sets.items():
        if one.split is not None:
            sets[name] = (dataset, one.split)
        else:
            own = find_dataset(run, name)
            if own is None:
                raise UsageError(
                    f"There is no dataset of evaluate.sets.{name} for its files and these shard settings.",
                    remedy="Run `trainwright shard` with the same spec first.",
                )
            sets[name] = (own, "test")
    return sets
