"""shard: raw rows become sealed shards. A child process does the work, because the user's transform may run there.

The stage's line, its page in Prefect and the run's page say how the raw rows became those of a dataset's splits.

Whether train and test share rows is a part of this stage: it compares the sealed rows of the run's dataset, its mixture
and evaluation sets. The report is looked up under a key of its own, so a reused dataset is compared too.

`sets_to_score` says which of these rows an evaluation scores, and `pairs_of` for which metrics it keeps the truth and
the prediction of each.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_contracts.canonical import canonical, reuse_key
from data_contracts.contract.suites import nearest
from data_contracts.errors import UsageError
from data_contracts.handoffs import ContractReport, Dataset, Ref, SourceFile
from data_contracts.messages.raw_data import (
    CONTAMINATION,
    HELD_OUT,
    MOST_NEAR_SIDES,
    SCORED,
    SHARD,
    TRAINED,
    ContaminationReport,
    ContaminationRequest,
    ShardProgress,
    ShardRequest,
    Side,
    asking_fields,
)
from data_contracts.pipeline_spec import ContaminationSpec, PipelineSpec, SourceSpec
from data_contracts.quoting import absent_name, columns_shown
from infra.child import run_child
from infra.records.handoffs import (
    ANEW,
    LACKING,
    ROW_COUNTS,
    dataset_to_extend,
    newest_dataset,
    newest_handoff,
    read_handoff,
)
from infra.sources.documents import PLACE
from infra.store import Store
from tasks.evidence.resampled_metrics import keeps_pairs
from tasks.gates.set_rows import Sets
from tasks.run.progress import shown
from tasks.run.run import Run, RunInputs
from tasks.run.spec_check import FEATURES, suite_called
from tasks.stages.contract_check import checked, cut_files, raw_inputs, reading_settings, runs_tokenizer
from tasks.stages.placement import run_here
from tasks.stages.stage import ClusterStage, Stage, StageOutcome, rejected
from tasks.stages.validate import (
    accepted,
    contract_key,
    features_key,
    features_report,
    features_request,
    reading,
    rejection,
    set_report,
    set_requests,
    validate,
)

VERSION = 2
ON_CLUSTER = ClusterStage("shard", "shards.runner", "lower shards.memory_bytes or give the workers fewer threads")
# A split is warned about if its share is off by more than so many points of all rows or so large a part of what was
# asked, whichever is less, and by more than so many standard errors of a draw row by row. docs/shard.md states them.
MOST_POINTS, MOST_PART, MOST_ERRORS = 0.05, 0.2, 3.0
_CAUSES = {
    "window": "outside the window",
    "gap": "in a gap",
    "transform": "left out by shards.transform",
    "contamination": "copies of rows in other splits",
}
CONTAMINATION_VERSION = 1
# Of a comparison with near duplicates: since 2, other pairs of texts share no band and are missed.
NEAR_VERSION = 2
COPIES_REMEDY = (
    "Look at the rows that are named, and at shards.split. contract.contamination.on_found: drop leaves out the copies "
    "in the split that is used earlier; warn keeps them."
)
UNNAMED = "Unnamed: 0"
# Field of the request → area of the store.
_PLACES = {"uri": "contracts", "dataset_uri": "datasets"}


def dataset_key(run: RunInputs, set_name: str | None = None) -> str:
    """Reuse key of a dataset: the shards' settings, the raw bytes, and the user's code if a transform runs.

    A named evaluation set is read as its own sources say and has a key of its own; the window does not apply to it.
    """
    return _key(run, raw_inputs(_raw(run, set_name)[0]), set_name)


def find_dataset(run: RunInputs, set_name: str | None = None) -> Dataset | None:
    """The sealed dataset of this run's raw files, or of a named evaluation set; None if it is not made yet."""
    return newest_dataset(run.store, dataset_key(run, set_name))


def shard_key(run: RunInputs, contract: ContractReport | None) -> str | None:
    """Reuse key of the run's own dataset."""
    return None if run.external else dataset_key(run)


def find_datasets(run: Run, key: str, contract: ContractReport | None) -> StageOutcome[Dataset | None] | None:
    """The dataset under this key; `lacks` names the evaluation sets that are not made yet."""
    dataset = newest_dataset(run.store, key)
    if dataset is None:
        return None
    sets = {name: find_dataset(run, name) for name in run.resolved.sets}
    lacking = next((name for name, one in sets.items() if one is None), None)
    if lacking is not None:
        return _told(run, dataset, dataset.ref.uri, unmade(lacking))
    done = _with_features(run, dataset, _told(run, dataset, dataset.ref.uri), make=False)
    return with_splits_compared(
        run, done, {name: one for name, one in sets.items() if one is not None}, contract, make=False
    )


def make_datasets(run: Run, key: str, contract: ContractReport | None) -> StageOutcome[Dataset | None]:
    """Make the dataset and those of named evaluation sets, unless they exist.

    Raises:
        UsageError: a split without rows, a key or time in two splits, a column the format cannot hold.
        UserCodeError: the user's transform raised.
    """
    found = newest_dataset(run.store, key)
    dataset = found or _make(run, contract)
    sets = {name: find_dataset(run, name) or _make(run, _set_contract(run, name), name) for name in run.resolved.sets}
    empty = found is None and dataset.key != key  # the new files have no rows
    reused_from = dataset.ref.uri if found is not None or empty else None
    done = _with_features(run, dataset, _told(run, dataset, reused_from), make=True)
    return with_splits_compared(run, done, sets, contract, make=True)


def _with_features(
    run: Run, dataset: Dataset, done: StageOutcome[Dataset | None], *, make: bool
) -> StageOutcome[Dataset | None]:
    """The stage's answer after the rows in the shards were checked, too, if `contract.features` asks for it."""
    key = features_key(run, dataset)
    if key is None:
        return done
    report = features_report(run, key)
    if report is None:
        if not make:
            return replace(done, lacks="the dataset is not checked against contract.features yet")
        with suite_called(FEATURES, run.spec, Path(run.resolved.root)):
            request = features_request(run, dataset, splits_in_order(dataset))
            report = checked(run, key, request, run.provenance(dataset.ref))
        done = replace(done, status="ran", reused_from=None)
    assert report.ref is not None
    assert run.spec.contract is not None
    assert run.spec.contract.features is not None
    if report.accepted:
        return replace(done, sentence=f"{done.sentence}; contract.features: {accepted(report)}")
    sentence = f"contract.features: {rejection(report, run.spec.contract.features.fail_on, 'shards')}"
    return rejected(done, sentence, report, report.ref.uri)


shard = Stage(
    "shard",
    sections=("data", "shards"),
    takes=(validate,),
    key=shard_key,
    find=find_datasets,
    make=make_datasets,
    missing="there is no dataset for this data and these shard settings",
    keyed=False,  # the contract's report is a parent of the dataset, and does not change it
)


def _set_contract(run: Run, name: str) -> ContractReport | None:
    """The report that accepted a set's rows; None if it has no contract."""
    request = set_requests(run).get(name)
    return None if request is None else set_report(run, request)


def comparison(run: Run) -> Ref | None:
    """The sealed report that says how far this run's splits are apart; None if its spec does not ask."""
    if section_of(run) is None:
        return None
    sets = {name: find_dataset(run, name) for name in run.resolved.sets}
    return report_of(run, find_dataset(run), {name: one for name, one in sets.items() if one is not None})


def _told(run: Run, dataset: Dataset, reused_from: str | None, lacks: str = "") -> StageOutcome[Dataset | None]:
    rows, read = split_rows(run, dataset), rows_read(run, dataset)
    num_shards = sum(len(shards) for shards in dataset.splits.values())
    splits = ", ".join(f"{name} {text}" for name, text in rows.items())
    of = "" if read is None else f" of {read:,}"
    left_out = ", ".join(f"{count:,} {why}" for why, count in rows_left_out(run, dataset).items())
    short, documents = (dataset.documents.get(name, 0) for name in ("undivided", "all"))
    whole = f"{short:,} of {documents:,} documents are too short to be divided, and are in one split each"
    anew = None if reused_from else run.store.manifest(dataset.ref).provenance.get(ANEW)
    clauses = [
        f"{num_shards} {dataset.format} shards: {splits}{of} rows",
        left_out,
        whole if short else "",
        "the new files have no rows" if reused_from and dataset.key != dataset_key(run) else "",
        f"all files were sharded again, because {anew}" if anew else "",
        *row_remarks(run, dataset),
    ]
    sentence = "; ".join(filter(None, clauses))
    return StageOutcome(dataset, "reused" if reused_from else "ran", sentence, dataset.ref, reused_from, lacks=lacks)


def unmade(name: str) -> str:
    """Why a named evaluation set cannot be scored yet."""
    return f"there is no dataset of evaluate.sets.{name} for its files and these shard settings"


def _key(run: RunInputs, inputs: list[Any] | None, set_name: str | None = None) -> str:
    """The reuse key with these inputs; with None, the key shared by datasets that can extend one another."""
    shards = run.spec.shards
    assert shards is not None
    settings = shards.model_dump(mode="json", exclude=set(shards.UNKEYED))
    # Canonical JSON sorts keys, but the order of the shares decides which rows each split gets.
    for name in ("fractions", "boundaries"):
        settings["split"][name] = list(settings["split"][name].items())
    sources = reading_settings(_raw(run, set_name)[1])
    how = reading(run) if set_name is None else {"window": None, "window_column": None, "sources": sources}
    settings = {**settings, **how, "all_rows_in_one_split": set_name is not None}
    if inputs is None:
        del settings["sources"]
    if set_name is None and run.spec.contract is not None and run.spec.contract.quarantine is not None:
        # It decides the rows that are left out; a comparison with earlier data does not.
        settings["quarantine"] = contract_key(run, drift=False)
    runs_code = shards.transform is not None or runs_tokenizer(_raw(run, set_name)[1])
    return reuse_key("shard", VERSION, settings, inputs or [], run.resolved.code_digest if runs_code else None)


def _raw(run: RunInputs, set_name: str | None) -> tuple[list[SourceFile], list[SourceSpec]]:
    """Files and sources of the pipeline's data, or of a named evaluation set."""
    if set_name is not None:
        return run.resolved.sets[set_name], run.spec.evaluate.sets[set_name].source or []
    assert not isinstance(run.spec.data, str)
    return run.resolved.files, run.spec.data.source


def _make(run: Run, contract: ContractReport | None, set_name: str | None = None) -> Dataset:
    request = _request(run, contract, set_name)
    cut = {name: cut_files(run, getattr(request, name), request.sources) for name in ("every", "files")}
    request = request.model_copy(update=cut)
    assert run.spec.shards is not None
    runner = run.spec.shards.runner
    with shown("shard") as progress:
        if runner == "local":
            return run_child(
                SHARD,
                request,
                withhold=run.withholds,
                memory_share=run.memory_share,
                on_report={ShardProgress: progress},
            )
        from tasks.stages.dask_cluster import run_on_dask  # Dask and Prefect take seconds to import

        return run_on_dask(run, ON_CLUSTER, runner, SHARD, request, on_report={ShardProgress: progress})


def _preparation(spec: PipelineSpec) -> dict[str, object]:
    """What `predict` needs to treat raw rows as this stage does; provenance, so no dataset's id depends on it."""
    assert spec.shards is not None
    assert not isinstance(spec.data, str)
    transform = spec.shards.transform
    made = None if transform is None else transform.model_dump(mode="json")
    return {"preparation": {"transform": made, "sensitive": spec.data.sensitive}}


def _extension(run: Run, request: ShardRequest, parents: list[Ref | None]) -> ShardRequest:
    """The request for a dataset that extends an earlier one, if there is one: only new files are sharded."""
    assert not isinstance(run.spec.data, str)
    # Each file with how it is read, so that another source may be added to those of the dataset.
    read, series = reading_settings(run.spec.data.source), _key(run, None)
    inputs = [{**one, "source": read[one["source"]]} for one in raw_inputs(run.resolved.files)]
    # So that a later extension finds this dataset.
    request = request.model_copy(update={"settings": {**request.settings, "series": series, "inputs": inputs}})
    found = dataset_to_extend(run.store, series, inputs)
    if found is None:
        return request
    parent, had = found
    left = [canonical(one) for one in had]
    new = []
    for file, one in zip(run.resolved.files, inputs, strict=True):
        if canonical(one) in left:
            left.remove(canonical(one))
        else:
            new.append(file)
    provenance = {**request.provenance, **run.provenance(*parents, parent.ref)}
    added = {"files": new, "every": request.files, "appended_to": parent, "provenance": provenance}
    return request.model_copy(update=added)


def _request(run: Run, contract: ContractReport | None, set_name: str | None) -> ShardRequest:
    spec = run.spec
    assert spec.shards is not None
    assert not isinstance(spec.data, str)
    key = dataset_key(run, set_name)
    files, sources = _raw(run, set_name)
    windowed = set_name is None and spec.data.window is not None
    parents = [contract.ref if contract else None]
    request = ShardRequest(
        store=run.store_address,
        uri=run.store.next_attempt("datasets", key),
        key=key,
        one_split=None if set_name is None else "test",
        files=files,
        sources=sources,
        root=run.resolved.root,
        window=run.resolved.window if windowed else None,
        window_column=spec.data.window.column if windowed and spec.data.window else None,
        shards=spec.shards,
        required_splits=["train", spec.evaluate.split] if set_name is None else ["test"],
        sensitive=spec.data.sensitive,
        project=str(run.project()) if spec.shards.transform else None,
        provenance={**run.provenance(*parents), **run.raw_provenance(files, sources), **_preparation(spec)},
        settings={"files": [file.blake3 for file in files]},
        quarantine=contract.ref if contract is not None and contract.quarantine is not None else None,
        strict=set_name is None and spec.data.schema == "strict",
    )
    return _extension(run, request, parents) if spec.shards.append and set_name is None else request


def splits_in_order(dataset: Dataset) -> list[str]:
    """A dataset's splits in the usual order: train, val and test first, others by name."""
    usual = ("train", "val", "test")
    return sorted(dataset.splits, key=lambda name: (usual.index(name) if name in usual else len(usual), name))


def split_rows(run: Run, dataset: Dataset) -> dict[str, str]:
    """Each split's rows, their share, and the share that was asked, if one was."""
    asked, rows = _shares(run), {name: dataset.rows(name) for name in splits_in_order(dataset)}
    every = max(1, sum(rows.values()))
    texts = {}
    for name, count in rows.items():
        wanted = f", asked {100 * asked[name]:.3g}%" if name in asked else ""
        texts[name] = f"{count:,} ({count / every:.1%}{wanted})"
    return texts


def rows_read(run: Run, dataset: Dataset) -> int | None:
    """The rows of the raw files; None for a dataset of an earlier version, which did not record it."""
    return _counts(run.store, dataset).get("read")


def rows_left_out(run: Run, dataset: Dataset) -> dict[str, int]:
    """The raw rows that are in no split, by cause in words, without causes that left out none."""
    counts = dataset.dropped_rows | _counts(run.store, dataset)
    return {_CAUSES.get(why, why): rows for why, rows in counts.items() if rows and why not in ("read", "added")}


def row_remarks(run: Run, dataset: Dataset) -> list[str]:
    """What a person should know about the rows: rows that were made, columns that files lack, unexpected shares."""
    found = []
    if added := _counts(run.store, dataset).get("added"):
        found.append(f"shards.transform made {added:,} rows more than it got")
    if lacking := _provenance(run.store, dataset).get(LACKING):
        names = columns_shown(lacking, run.withholds)
        found.append(f"some files lack columns, which are null in their rows: {names}")
    return found + share_warnings(run, dataset)


def share_warnings(run: Run, dataset: Dataset) -> list[str]:
    """Splits without rows, and splits whose share is off by more than chance explains; see docs/shard.md."""
    asked, every = _shares(run), sum(dataset.rows(name) for name in dataset.splits)
    assert run.spec.shards is not None
    key = run.spec.shards.split.key
    why = f", because rows with the same {key if isinstance(key, str) else ', '.join(key)} stay together" if key else ""
    found = []
    for name, share in asked.items():
        actual = dataset.rows(name) / max(1, every)
        error = math.sqrt(share * (1 - share) / max(1, every))
        if share and not actual:
            found.append(f"warning: {name} has no rows, but {100 * share:.3g}% were asked for")
        elif abs(actual - share) > max(min(MOST_POINTS, MOST_PART * share), MOST_ERRORS * error):
            found.append(f"warning: {name} has {actual:.1%} of the rows, but {100 * share:.3g}% were asked for{why}")
    return found


def _shares(run: Run) -> dict[str, float]:
    """The share of each split that the spec asks for; {} where a column or boundaries decide."""
    split = run.spec.shards.split if run.spec.shards is not None else None
    return {} if split is None or split.column is not None or split.boundaries else split.fractions


def _counts(store: Store, dataset: Dataset) -> dict[str, int]:
    return _provenance(store, dataset).get(ROW_COUNTS, {})


def _provenance(store: Store, dataset: Dataset) -> dict[str, Any]:
    """What is recorded of how a dataset was made; of one without copies also what is recorded of that with them."""
    with contextlib.suppress(FileNotFoundError):
        manifest = store.manifest(dataset.ref)
        whole = manifest.parent_in("datasets") if "without_copies_of" in manifest.settings else None
        return manifest.provenance if whole is None else {**store.manifest(whole).provenance, **manifest.provenance}
    return {}


OtherSets = Mapping[str, Dataset]
Sharded = StageOutcome[Dataset | None]


def section_of(run: Run) -> ContaminationSpec | None:
    """What the spec asks; None if rows are not compared."""
    return run.spec.contract.contamination if run.spec.contract is not None else None


def with_splits_compared(
    run: Run, done: Sharded, sets: OtherSets, contract: ContractReport | None, *, make: bool
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
        found = report, _compared_dataset(run, request, report)
    report, kept = found
    done = replace(done, status=status, reused_from=done.reused_from if status == "reused" else None)
    if not report.accepted:
        sentence = f"The contract rejects the split: {report.sentence}."
        return rejected(done, sentence, report, report.ref.uri if report.ref else "", _copies_remedy(report, section))
    sentence = f"{done.sentence}; {report.sentence or 'no row is in two splits'}"
    if kept.ref == dataset.ref:
        return replace(done, sentence=sentence)
    left = ", ".join(f"{name} {text}" for name, text in split_rows(run, kept).items())
    sentence = "; ".join([f"{sentence}; without them {left} rows", *share_warnings(run, kept)])
    reused_from = kept.ref.uri if done.reused_from else None
    return replace(done, handoff=kept, sentence=sentence, ref=kept.ref, reused_from=reused_from)


def report_of(run: Run, dataset: Dataset | None, sets: OtherSets) -> Ref | None:
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


def _compared_dataset(run: Run, request: ContaminationRequest, report: ContaminationReport) -> Dataset:
    return request.dataset if report.dataset is None else read_handoff(run.store, report.dataset, Dataset)


def _contamination_request(
    run: Run, section: ContaminationSpec, dataset: Dataset, sets: OtherSets, contract: ContractReport | None
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
    version = CONTAMINATION_VERSION if section.near is None else NEAR_VERSION
    key = reuse_key("contamination", version, settings, inputs, None)
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
        section=section,
        provenance=run.provenance(*parents.values(), contract.ref if contract else None),
    )


def _sides(run: Run, dataset: Dataset, sets: OtherSets) -> list[Side]:
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


def sets_to_score(run: RunInputs, dataset: Dataset | None) -> Sets:
    """The sets to score; UsageError if `shard` has not made the dataset of a set."""
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
                raise shard.first(unmade(name))
            sets[name] = (own, "test")
    return sets


def pairs_of(run: RunInputs) -> list[str]:
    """The metrics whose gate computes them again on some of the rows, so that the pairs of each row are kept."""
    metrics = run.spec.evaluate.metrics
    gates = [gate for gate in run.spec.promote.gates if gate.confidence or gate.slice or gate.max_gap is not None]
    named = {gate.name.rpartition("/")[2] for gate in gates} & metrics.keys()
    return sorted(name for name in named if keeps_pairs(metrics[name].class_path, metrics[name].init_args))
