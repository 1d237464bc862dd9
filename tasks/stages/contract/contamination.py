"""Whether train and test share rows: compares the sealed rows of the run's dataset, its mixture and evaluation sets.

It is a part of the shard stage: its report is looked up under a key of its own, so a reused dataset is compared too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from data_contracts.canonical import reuse_key
from data_contracts.contract.suites import nearest
from data_contracts.errors import UsageError
from data_contracts.handoffs import ContractReport, Dataset, Ref
from data_contracts.messages.raw_data import (
    CONTAMINATION,
    HELD_OUT,
    MOST_NEAR_SIDES,
    SCORED,
    TRAINED,
    ContaminationReport,
    ContaminationRequest,
    Side,
    asking_fields,
)
from data_contracts.pipeline_spec import ContaminationSpec
from data_contracts.quoting import absent_name, columns_shown
from infra.records.handoffs import newest_dataset, newest_handoff, read_handoff
from infra.sources.documents import PLACE
from tasks.run.run import Run
from tasks.stages.placement import run_here
from tasks.stages.row_counts import split_rows, warnings
from tasks.stages.stage import StageOutcome, rejected

CONTAMINATION_VERSION = 1
COPIES_REMEDY = (
    "Look at the rows that are named, and at shards.split. contract.contamination.on_found: drop leaves out the copies "
    "in the split that is used earlier; warn keeps them."
)
UNNAMED = "Unnamed: 0"
# Field of the request → area of the store.
_PLACES = {"uri": "contracts", "dataset_uri": "datasets"}
Sets = Mapping[str, Dataset]
Sharded = StageOutcome[Dataset | None]


def section_of(run: Run) -> ContaminationSpec | None:
    """What the spec asks; None if rows are not compared."""
    return run.spec.contract.contamination if run.spec.contract is not None else None


def with_splits_compared(
    run: Run, done: Sharded, sets: Sets, contract: ContractReport | None, *, make: bool
) -> Sharded:
    """The shard stage's answer after the rows were compared: with the rejection, or the dataset without copies.

    Args:
        done: the answer, with the dataset; sets: the datasets of evaluation sets that have raw files of their own.
        make: compare if there is no report yet; otherwise `lacks` says so.
    """
    section, dataset = section_of(run), done.handoff
    if section is None or dataset is None or done.lacks or done.error is not None:
        return done
    request = _contamination_request(run, section, dataset, sets, contract)
    found, report = _find_comparison(run, request), None
    if found is None and not make:
        return replace(done, lacks="its rows are not compared with those of other splits yet")
    status = done.status
    if found is None:
        places = {area: run.store.next_attempt(name, request.key) for area, name in _PLACES.items()}
        report, status = run_here(run, CONTAMINATION, request.model_copy(update=places)), "ran"
        found = report, _dataset(run, request, report)
    report, kept = found
    done = replace(done, status=status, reused_from=done.reused_from if status == "reused" else None)
    if not report.accepted:
        sentence = f"The contract rejects the split: {report.sentence}."
        return rejected(done, sentence, report, report.ref.uri if report.ref else "", _copies_remedy(report, section))
    sentence = f"{done.sentence}; {report.sentence or 'no row is in two splits'}"
    if kept.ref == dataset.ref:
        return replace(done, sentence=sentence)
    left = ", ".join(f"{name} {text}" for name, text in split_rows(run, kept).items())
    sentence = "; ".join([f"{sentence}; without them {left} rows", *warnings(run, kept)])
    reused_from = kept.ref.uri if done.reused_from else None
    return replace(done, handoff=kept, sentence=sentence, ref=kept.ref, reused_from=reused_from)


def report_of(run: Run, dataset: Dataset | None, sets: Sets) -> Ref | None:
    """The sealed report about a dataset of this run before copies were dropped; None if rows are not compared."""
    section = section_of(run)
    if section is None or dataset is None:
        return None
    return run.store.newest("contracts", _contamination_request(run, section, dataset, sets, None).key)


def _find_comparison(run: Run, request: ContaminationRequest) -> tuple[ContaminationReport, Dataset] | None:
    """The report under this key, and the dataset that it leads to; None if either is missing."""
    report = newest_handoff(run.store, "contracts", request.key, ContaminationReport)
    if report is None:
        return None
    if report.dataset is None:
        return report, request.dataset
    kept = newest_dataset(run.store, request.key)
    return None if kept is None else (report, kept)


def _dataset(run: Run, request: ContaminationRequest, report: ContaminationReport) -> Dataset:
    return request.dataset if report.dataset is None else read_handoff(run.store, report.dataset, Dataset)


def _contamination_request(
    run: Run, section: ContaminationSpec, dataset: Dataset, sets: Sets, contract: ContractReport | None
) -> ContaminationRequest:
    sides = _sides(run, dataset, sets)
    label = _labels(run, section, dataset)
    columns = _columns(run, section, dataset, label)
    for side in sides:
        _refuse_unknown(asking_fields(section, columns, label), side, sensitive=run.withholds)
    if section.near is not None and len(sides) > MOST_NEAR_SIDES:
        raise UsageError(
            f"contract.contamination.near: {len(sides)} splits, mixed datasets and evaluation sets would be compared, "
            f"and at most {MOST_NEAR_SIDES} can be.",
            remedy="Leave near out, or compare fewer evaluation sets in one run.",
        )
    settings = {
        "asked": section.model_dump(mode="json"),
        "columns": columns,
        "label": label,
        "sides": [[side.name, side.split, side.use, side.own] for side in sides],
    }
    inputs = [side.dataset.ref.id for side in sides]
    key = reuse_key("contamination", CONTAMINATION_VERSION, settings, inputs, None)
    parents = {side.dataset.ref.uri: side.dataset.ref for side in sides}
    return ContaminationRequest(
        store=run.store_address,
        uri="",
        dataset_uri="",
        key=key,
        dataset=dataset,
        sides=sides,
        columns=columns,
        label=label,
        asked=section,
        provenance=run.provenance(*parents.values(), contract.ref if contract else None),
    )


def _sides(run: Run, dataset: Dataset, sets: Sets) -> list[Side]:
    """The rows that are compared: those of splits, of a mixture's other datasets, and of evaluation sets."""
    evaluate = run.spec.evaluate
    scored = {evaluate.split, *(one.split for one in evaluate.sets.values() if one.split is not None)}

    def use(split: str) -> int:
        return SCORED if split in scored else TRAINED if split == "train" else HELD_OUT

    own = [
        Side(name=split, dataset=dataset, split=split, use=use(split), own=True)
        for split, shards in dataset.splits.items()
        if shards
    ]
    # By use: a dataset that was read from the store has its splits in another order than a new one.
    own.sort(key=lambda side: (side.use, side.name))
    mixed = [
        Side(name=f"train of {name}", dataset=other, split="train", use=TRAINED, own=False)
        for name, other in sorted(run.resolved.mixture.items())
        if other.splits.get("train")
    ]
    named = [
        Side(name=f"evaluate.sets.{name}", dataset=one, split="test", use=SCORED, own=False)
        for name, one in sorted(sets.items())
    ]
    return [*own, *mixed, *named]


def _labels(run: Run, section: ContaminationSpec, dataset: Dataset) -> list[str]:
    """The columns with the truth: those that the spec names, or the metrics' targets that are columns."""
    if section.labels is not None:
        return section.labels
    batch, found = run.spec.train.batch, []
    for metric in run.spec.evaluate.metrics.values():
        entry = metric.target
        if isinstance(batch, dict) and entry in batch:
            entry = _column(batch[entry])
        elif isinstance(batch, list) and entry is not None and entry.lstrip("-").isdigit():
            at = int(entry)
            entry = _column(batch[at]) if -len(batch) <= at < len(batch) else None
        if entry in dataset.columns and entry is not None:
            found.append(entry)
    return [name for name in dict.fromkeys(found) if name not in (section.columns or [])]


def _column(part: str | list[str]) -> str | None:
    """The column of a batch's entry; None if it is made of several."""
    return part if isinstance(part, str) else None


def _columns(run: Run, section: ContaminationSpec, dataset: Dataset, label: list[str]) -> list[str]:
    """The columns that make two rows the same."""
    if section.columns is not None:
        return section.columns
    assert run.spec.shards is not None
    split = run.spec.shards.split
    keys = [split.key] if isinstance(split.key, str) else split.key or []
    texts = not isinstance(run.spec.data, str) and any(one.format == "text" for one in run.spec.data.source)
    out = {*label, *keys, split.time, split.column, *section.ignore, *(PLACE if texts else ())}
    # The first column of a CSV whose header gives it no name: pandas' index, or R's row names.
    out |= {UNNAMED} if dataset.columns.get(UNNAMED) == "int64" else set()
    unknown = [name for name in section.ignore if name not in dataset.columns]
    if unknown:
        raise _unknown("contract.contamination.ignore", unknown[0], dataset, "the dataset", sensitive=run.withholds)
    columns = sorted(name for name in dataset.columns if name not in out)
    if not columns:
        raise UsageError(
            "contract.contamination: no column is left to compare rows by.",
            remedy="Name the columns that make two rows the same (contract.contamination.columns).",
        )
    return columns


def _refuse_unknown(fields: Mapping[str, str], side: Side, *, sensitive: bool) -> None:
    for name, field in fields.items():
        if name not in side.dataset.columns:
            raise _unknown(field, name, side.dataset, side.name, sensitive=sensitive)


def _unknown(field: str, name: str, dataset: Dataset, where: str, *, sensitive: bool) -> UsageError:
    there = [] if sensitive else list(dataset.columns)
    hint = nearest(name, there) or "."
    return UsageError(
        f"{field}: {where} has no column {absent_name(name, there)}{hint}",
        remedy=f"It has {columns_shown(dataset.columns, sensitive)}.",
    )


def _copies_remedy(report: ContaminationReport, section: ContaminationSpec) -> str:
    others = [one.earlier for one in report.overlaps if one.earlier.startswith("train of ")]
    if section.on_found == "drop" and others:
        return f"Rows of {others[0]} cannot be dropped here; drop them in the pipeline that made that dataset."
    if not report.overlaps or section.on_found != "reject":
        return "Correct the labels of these rows in the data, or set contract.contamination.on_conflict: warn."
    return COPIES_REMEDY
