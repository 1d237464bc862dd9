"""evaluate: scores one checkpoint on the run's sets and keeps the outcomes; scores the champion on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from data_contracts.canonical import reuse_key
from data_contracts.errors import InsufficientEvidence
from data_contracts.handoffs import Checkpoint, Dataset, Evaluation, Ref
from data_contracts.messages.children import EVALUATE, EvaluateRequest, ScoredSet
from data_contracts.pipeline_spec import MetricSpec
from data_contracts.pipeline_spec.promote import MEASURES
from infra.models import registry
from infra.records.handoffs import read_handoff
from tasks.gates.set_rows import Sets
from tasks.run.run import Run, RunInputs
from tasks.stages.placement import ScoringLayout, done_by_child, layout_in_plan, layout_of
from tasks.stages.shard import pairs_of, sets_to_score, shard
from tasks.stages.stage import Stage, StageOutcome
from tasks.stages.trainings import trained_with
from tasks.stages.validate import asked_of, undecided, with_predictions
from tasks.stages.verify import verify

# Version 2 left it to each batch whether scores are logits, and took 0 for a metric that is not defined.
VERSION, OF_OTHER_METRICS = 3, 2
_OF_SCORES = ("Binary", "Multilabel", "AUROC", "AUC", "AveragePrecision", "CalibrationError", "HingeLoss", "EER")


def find_evaluation(
    run: Run, key: str, checkpoint: Checkpoint, dataset: Dataset | None
) -> StageOutcome[Evaluation] | None:
    """The candidate's evaluation; `lacks` is set if its predictions are not checked, or the champion is not scored."""
    # Even a reused evaluation needs a checkpoint that was trained with its settings.
    trained_with(run.store, checkpoint)
    ref = run.store.newest("evaluations", key)
    if ref is None:
        return None
    evaluation = read_handoff(run.store, ref, Evaluation)
    found = with_predictions(run, evaluation, _scored(evaluation, reused=True), make=False)
    if found.lacks or found.error is not None:
        return found
    if (champion := _champion(run)) is not None:
        theirs = run.store.newest("evaluations", evaluation_key(run, champion, sets_to_score(run, dataset)))
        return found if theirs else replace(found, lacks="the champion has no evaluation on these sets")
    return found


def make_evaluation(run: Run, key: str, checkpoint: Checkpoint, dataset: Dataset | None) -> StageOutcome[Evaluation]:
    """Score the candidate, and the champion that the alias named when the run began, on the same rows.

    Raises:
        UsageError: a metric or split that does not exist.
        UserCodeError: the module or the metric raised.
    """
    evaluation, reused = score(run, checkpoint, dataset)
    done = _scored(evaluation, reused=reused, ranks="" if reused else _layout(run, checkpoint).used)
    done = with_predictions(run, evaluation, done, make=True)
    if done.error is None and (champion := _champion(run)) is not None:
        _decided(score(run, champion, dataset)[0])
    return done


def ranks_of(run: Run, checkpoint: Checkpoint | None, dataset: Dataset | None) -> str:
    """The ranks that would score the candidate, for a plan."""
    return layout_in_plan(run, "evaluate", checkpoint)


evaluate = Stage(
    "evaluate",
    sections=("evaluate",),
    takes=(verify, shard),
    key=lambda run, checkpoint, dataset: evaluation_key(run, checkpoint, sets_to_score(run, dataset)),
    find=find_evaluation,
    make=make_evaluation,
    missing="there is no evaluation of this checkpoint with these metrics",
    ranks=ranks_of,
)


def _decided(evaluation: Evaluation) -> Evaluation:
    """The evaluation; InsufficientEvidence if a metric has no value."""
    if evaluation.undecided:
        raise undecided(evaluation)
    return evaluation


def _champion(run: Run) -> Checkpoint | None:
    ref = run.resolved.champion
    return None if ref is None else registry.model_version(run.store, ref).checkpoint


def _scored(evaluation: Evaluation, *, reused: bool, ranks: str = "") -> StageOutcome[Evaluation]:
    values = [f"{name} {metric.value:.4f}" for name, metric in evaluation.metrics.items()]
    values += [f"{name} nan ({reason})" for name, reason in evaluation.undefined.items()]
    reused_from = evaluation.ref.uri if reused else None
    return StageOutcome(
        evaluation, "reused" if reused else "ran", ", ".join(values) + ranks, evaluation.ref, reused_from
    )


def score(
    run: Run, checkpoint: Checkpoint, dataset: Dataset | None, *, afresh: bool = False
) -> tuple[Evaluation, bool]:
    """The evaluation of a checkpoint on this run's sets, and whether it was reused; `afresh` forbids reuse."""
    sets = sets_to_score(run, dataset)
    trained = trained_with(run.store, checkpoint)
    key = evaluation_key(run, checkpoint, sets)
    ref = None if afresh else run.store.newest("evaluations", key)
    if ref is not None:
        return read_handoff(run.store, ref, Evaluation), True
    uri = run.store.next_attempt("evaluations", key)
    parents: list[Ref] = [checkpoint.ref, *(d.ref for d, _ in sets.values())]
    request = EvaluateRequest(
        store=run.store_address,
        uri=uri,
        key=key,
        checkpoint=checkpoint,
        train=trained.train,
        evaluate=run.spec.evaluate.result,
        sets={name: ScoredSet(dataset=d, split=split) for name, (d, split) in sets.items()},
        data_external=run.external,
        code=trained.code,
        metrics_code=run.resolved.code,
        settings={"checkpoint": checkpoint.ref.id, "sets": {name: [d.ref.id, s] for name, (d, s) in sets.items()}},
        provenance=run.provenance(*parents),
        predictions=asked_of(run) is not None,
        pairs=pairs_of(run),
        shown=_shown(run),
        measures=_measures(run),
    )
    # A second scoring is another piece of work than the first.
    name = f"evaluate-{key[:16]}{uri.removeprefix(f'evaluations/{key}') if afresh else ''}"
    return done_by_child(run, "evaluate", name, EVALUATE, request, _layout(run, checkpoint)), False


def _layout(run: Run, checkpoint: Checkpoint) -> ScoringLayout:
    """The ranks that score a checkpoint."""
    now = _champion(run)
    champion = now is not None and now.ref.id == checkpoint.ref.id
    return layout_of(run, "evaluate", trained_with(run.store, checkpoint).train, checkpoint, champion=champion)


def comparable(
    run: Run,
    checkpoint: Checkpoint,
    evaluation: Evaluation,
    champion: Checkpoint,
    dataset: Dataset | None,
    metrics: Sequence[str],
) -> tuple[Evaluation, Evaluation]:
    """The candidate's and the champion's evaluation on the same rows; scored again where the rows differed.

    The id of a dataset of ours stands for its rows. For a user's data module the evaluator keeps a digest of the rows:
    if that differs, an earlier evaluation is not reused.

    Args:
        metrics: names of the metrics that are compared.

    Raises:
        InsufficientEvidence: the targets still differ after scoring again.
    """
    theirs = _decided(score(run, champion, dataset)[0])
    if not _same_rows(run, evaluation, theirs, metrics):
        theirs = _decided(score(run, champion, dataset, afresh=True)[0])
        if not _same_rows(run, evaluation, theirs, metrics):
            evaluation = _decided(score(run, checkpoint, dataset, afresh=True)[0])
        for name in metrics:
            mine, other = _rows(run, evaluation).get(name), _rows(run, theirs).get(name)
            as_many = name in theirs.metrics and evaluation.metrics[name].rows == theirs.metrics[name].rows
            if as_many and mine and mine["of"] == "truth" and mine != other:
                raise InsufficientEvidence(
                    f"{name} was scored on as many rows as the champion, but on other rows, so the gate cannot decide",
                    remedy="Let the test loader give the same rows in the same order each time, and run again.",
                )
    return evaluation, theirs


def _same_rows(run: Run, candidate: Evaluation, champion: Evaluation, metrics: Sequence[str]) -> bool:
    mine, theirs = _rows(run, candidate), _rows(run, champion)
    if not run.external and not mine and not theirs:  # the dataset's id stands for its rows
        return True
    return all(name in mine and mine[name] == theirs.get(name) for name in metrics)


def _rows(run: Run, evaluation: Evaluation) -> dict[str, dict[str, str]]:
    """The evaluator's digests of the rows that a user's data module gave it, by metric."""
    return run.store.manifest(evaluation.ref).provenance.get("rows", {})


def evaluation_key(run: RunInputs, checkpoint: Checkpoint, sets: Sets) -> str:
    """Reuse key of an evaluation: the metrics and their code, the sets, and the checkpoint.

    The checkpoint's id stands for how its module and batches are made and for their code.
    """
    wanted = run.spec.evaluate.result
    inputs = {"checkpoint": checkpoint.ref.id, "sets": {name: [d.ref.id, split] for name, (d, split) in sets.items()}}
    classes = [metric.class_path or "" for metric in run.spec.evaluate.metrics.values()]
    perturbed = {name: one.perturb for name, one in run.spec.evaluate.sets.items() if one.perturb is not None}
    users = bool(perturbed) or any(path and not path.startswith("torchmetrics.") for path in classes)
    settings = {**wanted, "sets": sorted(wanted["sets"])}
    if asked_of(run) is not None:
        settings["predictions"] = True
    if perturbed:
        settings["perturbed"] = perturbed
    if measures := _measures(run):
        settings["measures"] = measures
    if sealed := sorted(name for name, one in run.spec.evaluate.sets.items() if one.sealed):
        settings["sealed"] = sealed
    if pairs := pairs_of(run):
        settings["pairs"] = pairs
    version = VERSION if any(map(_is_of_scores, run.spec.evaluate.metrics.values())) else OF_OTHER_METRICS
    return reuse_key("evaluate", version, settings, inputs, run.resolved.code_digest if users else None)


def _is_of_scores(metric: MetricSpec) -> bool:
    """Whether a metric may tell logits from probabilities, or be of the order of scores; it is one of yours, too."""
    if metric.class_path is None:
        return False
    kind, task = metric.class_path.rpartition(".")[2], metric.init_args.get("task")
    ours = metric.class_path.startswith("torchmetrics.")
    return not ours or task in ("binary", "multilabel") or any(part in kind for part in _OF_SCORES)


def _measures(run: RunInputs) -> list[str]:
    """The properties of the model itself that gates ask for."""
    return [name for name in MEASURES if any(name in gate.name for gate in run.spec.promote.gates)]


def _shown(run: Run) -> str:
    """The metric whose targets and predictions pages show; "" if none may be shown.

    It is not part of the key: an evaluation that was made without them is reused.
    """
    if run.withholds:
        return ""
    metrics = run.spec.evaluate.metrics
    named = [*(gate.name for gate in run.spec.promote.gates), *metrics]
    return next((name for name in named if name in metrics and metrics[name].class_path), "")
