"""The child process of the evaluate stage: scores one checkpoint on one or more sets, every row once.

Run as `python -m training.score.evaluate_worker REQUEST ANSWER` by `infra.child`. It opens the sets, and
`training.score.scoring` scores each; the outcomes are sealed beside the metrics as `outcomes.parquet`, and the
predictions of each row as `predictions.parquet`, and truth and prediction of each row for some metrics as
`pairs-<n>.parquet` and for pages as `shown.parquet`, if they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_contracts.canonical import canonical
from data_contracts.errors import UsageError
from data_contracts.handoffs import Evaluation, Ref
from data_contracts.messages.children import EVALUATE, EvaluateRequest, ShakedownRequest
from data_contracts.pipeline_spec import EvaluateSpec
from infra import scratch
from infra.processes.child_main import Report, child_main
from infra.records.evaluations import OUTCOMES, SEALED, SEALED_OUTCOMES
from infra.records.handoffs import put_handoff
from infra.store import Writer, open_at
from infra.store.store import seal_from
from training.checkpoint import load_module_weights
from training.loader import MemoryBudget, OrderedLoader, Shards, Split, stored_order
from training.score.metrics import metric_classes
from training.score.outcomes import MOST_SHOWN, SHOWN, Pairs, PairTable, PredictionTable, Scored, pair_tables
from training.score.scoring import Latency, Perturbation, Scorer, perturbations, score, size_bytes, then
from training.score.team import Dealt, Progress, Team, local_copy, read_again
from training.user.ready import batch_transform, build_datamodule, build_module

_OUTCOMES = pa.schema(
    [
        ("metric", pa.string()),
        ("unit", pa.string()),
        ("position", pa.int64()),
        ("rows", pa.int64()),
        ("value", pa.float64()),
    ]
)
# By the name of the set.
Tables = dict[str, PredictionTable]


@dataclass
class Kept:
    """What an evaluation keeps beside the metrics.

    Attributes:
        folder: for files.
        tables: of predictions, by set; pairs: of truth and prediction, by set and metric.
        shown: of truth and prediction on the first set, for pages, by metric.
        measures: what was measured of the model itself, by name.
    """

    folder: Path
    tables: Tables = field(default_factory=dict)
    pairs: Pairs = field(default_factory=dict)
    measures: dict[str, float] = field(default_factory=dict)
    shown: dict[str, PairTable] = field(default_factory=dict)

    def pairs_on(self, name: str) -> dict[str, PairTable]:
        """The tables of a set, by metric."""
        return {**({} if name else self.shown), **self.pairs[name]}


def main(request: EvaluateRequest, report: Report) -> Evaluation:
    """Score the checkpoint that a request names, and seal the evaluation; errors as in `scored_by`."""
    evaluation = evaluated(request, report, None)
    assert evaluation is not None
    return evaluation


def evaluated(request: EvaluateRequest, report: Report, team: Team | None) -> Evaluation | None:
    """Score the checkpoint that a request names, and seal the evaluation; None on a rank other than 0 of a team."""
    with scratch.make("outcomes") as folder:
        tables: Tables = {name: PredictionTable(folder.path, name) for name in _tables(request)}
        metrics = EvaluateSpec.model_validate(request.evaluate).metrics
        asked = {name: metrics[name] for name in request.pairs}
        kept = Kept(folder.path, tables, pair_tables(folder.path, list(request.sets) or [""], asked))
        if request.shown and request.shown not in asked:
            kept.shown[request.shown] = PairTable(folder.path / SHOWN, most_values=MOST_SHOWN)
        scored = scored_by(request, report, team, kept)
        return seal(request, scored, kept) if team is None or team.rank == 0 else None


def scored_by(request: EvaluateRequest, report: Report, team: Team | None, kept: Kept) -> dict[str, Scored]:
    """Score the checkpoint that a request names; on a rank other than 0 of a team, nothing is returned.

    Args:
        kept: gets what is kept beside the metrics.

    Raises:
        UsageError: a metric, a target, a perturbation or a split that does not exist.
        UserCodeError: the module raised.
    """
    checkpoint = request.checkpoint
    store = open_at(request.store)
    wanted = EvaluateSpec.model_validate(request.evaluate)
    project, train = request.project, request.train
    paths = [str(request.path(one.dataset.ref)) for one in request.sets.values()]
    if team is not None:
        team.connect(train)
    # First: a champion is scored by the current metrics, which its own code may lack or have in an older form.
    classes = metric_classes(wanted.metrics, request.path(request.metrics_code), project)
    perturbed = perturbations(wanted.sets, request.path(request.metrics_code), project)
    progress = Progress(report)
    progress.moved(long=True)
    read_again(store, checkpoint, progress, team)
    folder = local_copy(store, checkpoint.ref, team)
    if team is not None:
        team.folder = folder
    load = None if team is not None and team.sharded else lambda module: load_module_weights(module, folder)
    module = build_module(train, project, paths[0] if paths else "", load=load)
    progress.moved(long=True)
    scored: dict[str, Scored] = {}
    scorer, latency = Scorer(train, project, progress, team), Latency()
    timed = replace(scorer, latency=latency if "latency_ms" in request.measures else None)
    for number, (name, batches) in enumerate(sets_of(request, wanted, team, perturbed)):
        prefix = f"{name}/" if name else ""
        first = scorer if number else timed
        found = score(module, batches, wanted.metrics, classes, first, kept.tables.get(name), kept.pairs_on(name))
        scored |= {f"{prefix}{metric}": value for metric, value in found.items()}
    if "size_bytes" in request.measures:
        kept.measures["size_bytes"] = size_bytes(module)
    if latency.median_ms is not None:
        kept.measures["latency_ms"] = latency.median_ms
    return scored


def seal(request: EvaluateRequest, scored: dict[str, Scored], beside: Kept) -> Evaluation:
    """Seal the outcomes, the metrics, the predictions and the pairs."""
    store, tables, folder = open_at(request.store), beside.tables, beside.folder
    fields = {
        "schema_version": 1,
        "key": request.key,
        "checkpoint_id": request.checkpoint.ref.id,
        "dataset_ids": {name: one.dataset.ref.id for name, one in request.sets.items()},
        "metrics": {name: one.value.to_json() for name, one in scored.items() if not one.undefined},
    }
    if undefined := {name: one.undefined for name, one in scored.items() if one.undefined}:
        fields["undefined"] = undefined
    hidden = _sealed_sets(request)
    sealed = [name for name in scored if name.rpartition("/")[0] in hidden]
    files: dict[str, bytes | Path] = {}
    for file, names in ((OUTCOMES, [name for name in scored if name not in sealed]), (SEALED_OUTCOMES, sealed)):
        if names or file == OUTCOMES:
            pq.write_table(outcomes_table({name: scored[name] for name in names}), folder / file)
            files[file] = folder / file
    kept = {name: table.close() for name, table in tables.items()}
    files |= {one.file: folder / one.file for one in kept.values() if one.file}
    if kept:
        fields["predictions"] = {name: one.to_json() for name, one in kept.items()}
    if pairs := _closed(beside.pairs, scored):
        files |= {file: folder / file for file in pairs.values()}
        fields["pairs"] = pairs
    if shown := _shown(request.shown, beside, scored, pairs):
        files[shown] = folder / shown
        fields["shown"] = {request.shown: shown}
    if sealed:
        files[SEALED] = canonical(_taken_out(fields, sealed))
        fields["sealed"] = sealed
    if undecided := next((table.undecided for table in tables.values() if table.undecided), ""):
        fields["undecided"] = undecided
    # In the provenance, so that the id of an evaluation does not depend on it.
    rows = {name: one.rows for name, one in scored.items() if one.rows}
    more = {"rows": rows, "measures": beside.measures}
    provenance = {**request.provenance, **{name: value for name, value in more.items() if value}}

    def fill(writer: Writer) -> Ref:
        entries = [*(writer.put(name, data) for name, data in files.items()), put_handoff(writer, fields)]
        return writer.seal("evaluation", {**request.settings, "evaluate": request.evaluate}, provenance, entries)

    # What was killed before, on hardware that rounds differently, may have left other bytes.
    return Evaluation.from_json({**fields, "ref": seal_from(store, request.uri, fill).to_json()})


def _sealed_sets(request: EvaluateRequest) -> set[str]:
    """The names of the sealed sets."""
    return {name for name, one in request.evaluate.get("sets", {}).items() if one.get("sealed")}


def _taken_out(fields: Mapping[str, Any], names: list[str]) -> dict[str, dict[str, object]]:
    """What the hand-off's fields said of these metrics."""
    return {
        part: {name: fields[part].pop(name) for name in names if name in fields[part]}
        for part in ("metrics", "pairs", "undefined")
        if part in fields
    }


def outcomes_table(scored: dict[str, Scored]) -> pa.Table:
    """All outcomes, one line each: metric, unit, position in the set, number of rows, value."""
    lines = [
        {"metric": name, "unit": one.outcomes.unit, "position": position, "rows": rows, "value": value}
        for name, one in scored.items()
        for position, (value, rows) in enumerate(zip(one.outcomes.values, one.outcomes.rows, strict=True))
    ]
    return pa.Table.from_pylist(lines, schema=_OUTCOMES)


def _closed(pairs: Pairs, scored: dict[str, Scored]) -> dict[str, str]:
    """The files of the pairs by the metric's name; metrics without a value, or without a need for pairs, have none."""
    files = {}
    for set_name, tables in pairs.items():
        for metric, table in tables.items():
            name = f"{set_name}/{metric}" if set_name else metric
            if name in scored and not scored[name].undefined and (file := table.close(metric, scored[name])):
                files[name] = file
    return files


def _shown(metric: str, beside: Kept, scored: dict[str, Scored], files: Mapping[str, str]) -> str:
    """The file of a metric's pairs on the first set, for pages; "" if `files` of gates has some of this set."""
    if metric not in scored or scored[metric].undefined or any("/" not in name for name in files):
        return ""
    return beside.pairs_on("")[metric].close_for_pages()


def _tables(request: EvaluateRequest) -> list[str]:
    """The names of the sets whose predictions are kept; never of a sealed one, whose score they would tell."""
    hidden = _sealed_sets(request)
    return [name for name in request.sets if name not in hidden] if request.predictions else []


def sets_of(
    request: EvaluateRequest | ShakedownRequest,
    section: EvaluateSpec,
    team: Team | None,
    perturbed: Mapping[str, Perturbation],
    memory: MemoryBudget | None = None,
) -> Iterable[tuple[str, Any]]:
    """The sets to score by name: a loader of their rows, or the user's data module.

    Args:
        memory: for the rows of a set; default: what the machine has.
    """
    train, project = request.train, request.project
    if request.data_external:
        yield "", build_datamodule(train, project, "")
        return
    own = bool(train["lightning"].get("data"))
    for name, scored_set in request.sets.items():
        folder = request.path(scored_set.dataset.ref)
        if own and name and section.sets[name].split is not None:
            raise UsageError(
                f"evaluate.sets.{name}.split: your data module makes its own batches of the test split.",
                remedy="Give the set a source of its own, or leave it out.",
            )
        if own and name in perturbed:
            raise UsageError(
                f"evaluate.sets.{name}.perturb: your data module makes its own batches.",
                remedy="Perturb the rows in your data module, or leave this out.",
            )
        if own:
            yield name, build_datamodule(train, project, str(folder))
            continue
        if not scored_set.dataset.rows(scored_set.split):
            field = f"evaluate.sets.{name}.split" if name else "evaluate.split"
            raise UsageError(
                f"{field}: the dataset has no rows in a split {scored_set.split}; it has "
                f"{', '.join(scored_set.dataset.splits)}.",
                remedy="Name one of these.",
            )
        transform = then(batch_transform(train, project), perturbed.get(name))
        loader = stored_order(train)
        # Each set is scored before the next is opened, so each has the whole room.
        rows = Split(
            Shards(folder, scored_set.dataset, scored_set.split),
            batch=train["batch"],
            transform=transform,
            loader=loader,
            room=memory or MemoryBudget.of(loader, 1 if team is None else team.local_world_size),
            in_order=True,
        )
        size = section.batch_size
        yield name, OrderedLoader(rows, size) if team is None else Dealt(rows, size, team)


if __name__ == "__main__":
    child_main(EVALUATE, main)
