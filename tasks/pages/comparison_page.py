"""The page that compares two runs or versions, and what it shows: two sides, and what differs between them.

That is in data, contract, spec, code, metrics and weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from humanize import natural_list

from data_contracts.contract.reports import changes
from data_contracts.errors import UsageError
from data_contracts.handoffs import Evaluation, ModelVersion, Ref
from infra.records.handoffs import num_weight_bytes, read_handoff
from infra.store import Store, layout
from infra.weights import TensorChange, compare
from tasks.charts.picture import label
from tasks.charts.plots import SIDES, Bar, bars, panels
from tasks.pages.facts import Facts, facts_of, gather, tried
from tasks.pages.html import badge, code, page
from tasks.run.report import latest_report
from tasks.run.resolve import find_version
from tasks.run.run import not_found, reopen_run

# Larger weights are not read for a comparison.
MOST_WEIGHT_BYTES = 2**32
_FOLDER = "project/"
# Tensors with a bar; all are in the table.
_BARS = 16
_ROWS = 200


@dataclass(frozen=True)
class Side:
    """A run or a version: as it was named, the facts about its run, and the version if one was named."""

    name: str
    store: Store
    facts: Facts
    version: ModelVersion | None = None


@dataclass(frozen=True)
class Row:
    """One thing that differs: its name and how it is on each side, "" where it is not there."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class MetricRow:
    """A metric on each side.

    Attributes:
        better: whether it is better after; None if a side lacks it, or both are equal.
        comparable: whether both were scored on the same rows.
    """

    name: str
    before: float | None
    after: float | None
    better: bool | None
    comparable: bool


@dataclass(frozen=True)
class Comparison:
    """What differs between two sides, part by part; an empty part is the same on both.

    Attributes:
        weights: every tensor, the same ones too; no_weights: why they were not compared.
    """

    before: Side
    after: Side
    data: list[Row] = field(default_factory=list)
    contract: list[Row] = field(default_factory=list)
    spec: list[Row] = field(default_factory=list)
    code: list[Row] = field(default_factory=list)
    metrics: list[MetricRow] = field(default_factory=list)
    weights: list[TensorChange] = field(default_factory=list)
    no_weights: str = ""

    @property
    def parts(self) -> dict[str, list[Row]]:
        """The parts that are lists of differences."""
        return {"data": self.data, "contract": self.contract, "spec": self.spec, "code": self.code}

    @property
    def sentence(self) -> str:
        """What differs, in one sentence without a full stop."""
        changed = [name for name, rows in self.parts.items() if rows]
        changed += ["metrics"] if any(one.before != one.after for one in self.metrics) else []
        changed += ["weights"] if any(not one.same for one in self.weights) else []
        if not changed:
            return f"{self.before.name} and {self.after.name} do not differ"
        return f"{self.before.name} and {self.after.name} differ in {', '.join(changed)}"

    def to_json(self) -> dict[str, object]:
        """The comparison as objects that JSON can hold."""
        return {
            "before": _named(self.before),
            "after": _named(self.after),
            **{name: [vars(row) for row in rows] for name, rows in self.parts.items()},
            "metrics": [vars(one) for one in self.metrics],
            "weights": [one.to_json() for one in self.weights],
            "no_weights": self.no_weights,
        }


def find_side(stores: Sequence[Store], name: str) -> Side:
    """The run, version or alias with this name; UsageError if no store has it, or its run is gone."""
    model = name.partition("@")[0].partition(":")[0]
    for store in stores:
        if tried(partial(_has_run, store, name)):
            return Side(name, store, facts_of(reopen_run(name, store.uri)))
    for store in stores:
        if tried(partial(_has_model, store, model)):
            return _of_version(store, name)
    raise not_found(f"run or model {name}", stores)


def _has_run(store: Store, name: str) -> bool:
    folder, _, file = layout.resolved(name).rpartition("/")
    return file in store.list(folder)


def _has_model(store: Store, name: str) -> bool:
    return bool(store.list(layout.models(name)))


def compare_sides(before: Side, after: Side) -> Comparison:
    """The comparison of two sides."""
    changed, why = _compare_weights(before, after)
    return Comparison(
        before,
        after,
        data=_changed(_data(before.facts), _data(after.facts)),
        contract=_contract(before.facts, after.facts),
        spec=_changed(flat(before.facts.run.resolved.spec), flat(after.facts.run.resolved.spec))
        + _changed(
            flat(before.facts.run.resolved.lightning, "lightning."),
            flat(after.facts.run.resolved.lightning, "lightning."),
        ),
        code=_changed(_code(before), _code(after)),
        metrics=_compare_metrics(before.facts, after.facts),
        weights=changed,
        no_weights=why,
    )


def flat(value: Any, path: str = "") -> dict[str, str]:
    """A tree of settings as texts by dotted path; a list is one text, in JSON."""
    if isinstance(value, Mapping) and value:
        return {key: text for name, one in value.items() for key, text in flat(one, f"{path}{name}.").items()}
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return {path.rstrip("."): text}


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[Row]:
    pairs = [(name, before.get(name, ""), after.get(name, "")) for name in dict.fromkeys([*before, *after])]
    return [Row(name, old, new) for name, old, new in pairs if old != new]


def _of_version(store: Store, name: str) -> Side:
    """A version by alias or number, with the facts about the run that made it."""
    version, _ = find_version(store, name.replace(":", "@", 1))
    run_id = str(store.manifest(version.ref).provenance.get("run_id", ""))
    if not store.exists(layout.resolved(run_id)):
        raise UsageError(
            f"The run {run_id}, which made {version.name} version {version.version}, is no longer in {store.uri}.",
            remedy="`trainwright show` still shows the version; compare versions whose runs are kept.",
        )
    run = reopen_run(run_id, store.uri)
    made = {"checkpoint": version.checkpoint, "evaluation": read_handoff(store, version.evaluation, Evaluation)}
    return Side(name, store, gather(run, latest_report(store, run_id), made), version)


def _named(side: Side) -> Mapping[str, object]:
    version = side.version
    named = {"name": side.name, "run_id": side.facts.run.run_id}
    return named if version is None else {**named, "model": version.name, "version": version.version}


def _data(facts: Facts) -> dict[str, str]:
    """Raw files by their content, the dataset, its columns and the rows of its splits."""
    resolved, dataset = facts.run.resolved, facts.dataset
    known = {f"file {one.uri.rpartition('/')[2]}": f"{one.bytes:,} bytes, {one.blake3[:12]}" for one in resolved.files}
    known["window"] = " to ".join(resolved.window or ())
    if dataset is not None:
        known |= {"dataset": dataset.ref.id[:12], "format": dataset.format}
        known |= {f"rows of {name}": f"{dataset.rows(name):,}" for name in dataset.splits}
        known |= {f"left out: {why}": f"{rows:,}" for why, rows in dataset.dropped_rows.items()}
        if not facts.run.withholds:
            known |= {f"column {name}": kind for name, kind in dataset.columns.items()}
    return known


def _contract(before: Facts, after: Facts) -> list[Row]:
    """Whether each accepted its data, and expectations that newly break or no longer do."""
    old, new = before.contract, after.contract
    if old is None or new is None:
        return _changed({"report": "" if old is None else "yes"}, {"report": "" if new is None else "yes"})
    rows = _changed(
        {"verdict": _verdict(old.accepted), "suite": old.suite_digest[:12], "rows": f"{old.rows:,}"},
        {"verdict": _verdict(new.accepted), "suite": new.suite_digest[:12], "rows": f"{new.rows:,}"},
    )
    for one in changes(old, new):
        if one.kind != "same":
            name = f"{one.expectation}{f' on {one.column}' if one.column else ''}"
            rows.append(Row(name, _broken(one.before), _broken(one.after)))
    return rows


def _verdict(accepted: bool) -> str:
    return "accepted" if accepted else "rejected"


def _broken(rows: int | None) -> str:
    return "holds" if rows is None else f"broken by {rows:,} rows" if rows else "broken"


def _code(side: Side) -> dict[str, str]:
    """The files of the bundle of the user's code with the first characters of their digests."""
    files = tried(lambda: side.store.manifest(side.facts.run.resolved.code).files) or []
    return {one.path.removeprefix(_FOLDER): one.blake3[:12] for one in files}


def _compare_metrics(before: Facts, after: Facts) -> list[MetricRow]:
    old, new = before.evaluation, after.evaluation
    mine, theirs = (old.metrics if old else {}), (new.metrics if new else {})
    same = old is not None and new is not None and bool(old.dataset_ids) and old.dataset_ids == new.dataset_ids
    found = []
    for name in dict.fromkeys([*mine, *theirs]):
        a, b = mine.get(name), theirs.get(name)
        better = None
        if a is not None and b is not None and a.value != b.value and a.mode == b.mode:
            better = (b.value > a.value) == (b.mode == "max")
        rows = a is not None and b is not None and same and a.rows == b.rows
        found.append(MetricRow(name, a.value if a else None, b.value if b else None, better, rows))
    return found


def _compare_weights(before: Side, after: Side) -> tuple[list[TensorChange], str]:
    """Every tensor of both, or why they were not compared."""
    refs = _checkpoint(before), _checkpoint(after)
    if refs[0] is None or refs[1] is None:
        return [], "A side has no checkpoint."
    if refs[0].id == refs[1].id:
        return [], "Both have the same checkpoint."
    size = num_weight_bytes(before.store.manifest(refs[0])) + num_weight_bytes(after.store.manifest(refs[1]))
    if size > MOST_WEIGHT_BYTES:
        return [], f"The weights have {size:,} bytes together, which is more than is read for a comparison."
    return compare((before.store, after.store), (refs[0], refs[1])), ""


def _checkpoint(side: Side) -> Ref | None:
    if side.version is not None:
        return side.version.checkpoint.ref
    return None if side.facts.checkpoint is None else side.facts.checkpoint.ref


def comparison_page(comparison: Comparison) -> str:
    """The page: what differs first, then part by part."""
    before, after = comparison.before.name, comparison.after.name
    changed = [tensor for tensor in comparison.weights if not tensor.same]
    words = comparison.no_weights or f"{len(changed):,} of {len(comparison.weights):,} tensors differ."
    return page(
        "comparison",
        title=f"{before} and {after}",
        heading=f"{before} → {after}",
        sentence=comparison.sentence,
        sides=[_side(which, side) for which, side in zip(SIDES, (comparison.before, comparison.after), strict=True)],
        metrics=[_metric_cells(metric) for metric in comparison.metrics],
        curves=_curves(comparison),
        before=before,
        after=after,
        parts={name: [_cells(row) for row in rows] for name, rows in comparison.parts.items()},
        most=_ROWS,
        weight_words=words,
        weight_bars=_weight_bars(changed),
        weights=[_tensor_cells(tensor) for tensor in comparison.weights[:_ROWS]],
        same=_same(comparison),
    )


def figure(value: float | None) -> str:
    """A figure, or a dash where there is none."""
    return "–" if value is None else label(value)


def shapes(tensor: TensorChange) -> str:
    """A tensor's shape such as `16 × 3`, or both where they differ."""
    texts = ["–" if sizes is None else " × ".join(map(str, sizes)) or "one value" for sizes in tensor.shapes]
    return " → ".join(dict.fromkeys(texts))


def metric_note(metric: MetricRow) -> str:
    """What a metric's two values mean."""
    if metric.before is None or metric.after is None:
        return "not on both"
    rows = "" if metric.comparable else ", on other rows"
    return ("equal" if metric.better is None else "better" if metric.better else "worse") + rows


def _side(which: str, side: Side) -> tuple[str, ...]:
    report, version = side.facts.report, side.version
    verdict = report.verdict.replace("_", " ") if report is not None else "unfinished"
    named = "–" if version is None else f"{version.name} {version.version}"
    return which, side.name, side.facts.run.run_id, verdict, named


def _metric_cells(metric: MetricRow) -> tuple[str, ...]:
    difference = None if metric.before is None or metric.after is None else metric.after - metric.before
    return (
        metric.name,
        figure(metric.before),
        figure(metric.after),
        "–" if difference is None else f"{difference:+.4g}",
        badge(metric_note(metric), {True: "good", False: "bad", None: ""}[metric.better]),
    )


def _curves(comparison: Comparison) -> list[str]:
    """The logged values of both trainings, in one panel for each quantity."""
    records = []
    for which, side in zip(SIDES, (comparison.before, comparison.after), strict=True):
        for record in side.facts.history:
            values = {name: value for name, value in record.items() if name not in ("step", "epoch")}
            named = {f"{name} ({which})": value for name, value in values.items()}
            records.append({"step": record.get("step", 0), **named})
    return [picture for _, picture in panels(records)]


def _cells(row: Row) -> tuple[str, ...]:
    return row.name, *(code(text) if text else "–" for text in (row.before, row.after))


def _same(comparison: Comparison) -> str:
    """The parts that do not differ, in one sentence."""
    names = [name for name, rows in comparison.parts.items() if not rows]
    listed = f"{natural_list(names)} {'are' if len(names) > 1 else 'is'}"
    return f"{listed[:1].upper()}{listed[1:]} the same." if names else ""


def _weight_bars(changed: Sequence[TensorChange]) -> str:
    drawn = [
        Bar(tensor.name, tensor.relative, f"{tensor.relative:.1%}") for tensor in changed if tensor.relative is not None
    ]
    return bars(drawn[:_BARS], "Norm of the difference, as a share of the norm before")


def _tensor_cells(tensor: TensorChange) -> tuple[str, ...]:
    return tensor.name, shapes(tensor), *map(figure, (*tensor.norms, tensor.difference, tensor.largest))
