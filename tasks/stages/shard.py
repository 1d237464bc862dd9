"""shard: raw rows become sealed shards. A child process does the work, because the user's transform may run there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from data_contracts.canonical import canonical, reuse_key
from data_contracts.handoffs import ContractReport, Dataset, Ref, SourceFile
from data_contracts.messages.raw_data import SHARD, ShardProgress, ShardRequest
from data_contracts.pipeline_spec import PipelineSpec, SourceSpec
from infra.child import run_child
from infra.records.handoffs import ANEW, dataset_to_extend, newest_dataset
from tasks.run.progress import shown
from tasks.run.run import Run
from tasks.run.spec_check import FEATURES, suite_called
from tasks.stages.contract.contamination import report_of, section_of, with_splits_compared
from tasks.stages.contract.contract_check import checked
from tasks.stages.contract.features import features_key, features_report, features_request
from tasks.stages.contract.raw_rows import raw_inputs, reading_settings, runs_tokenizer
from tasks.stages.contract.set_contracts import set_report, set_requests
from tasks.stages.contract.text_cuts import cut_files
from tasks.stages.row_counts import in_order, remarks, rows_left_out, rows_read, split_rows
from tasks.stages.stage import ClusterStage, Stage, StageOutcome, rejected
from tasks.stages.validate import accepted, contract_key, reading, rejection, validate

VERSION = 2
ON_CLUSTER = ClusterStage(
    "shard", "shards.runner", "dataset", "lower shards.memory_bytes or give the workers fewer threads"
)


def dataset_key(run: Run, set_name: str | None = None) -> str:
    """Reuse key of a dataset: the shards' settings, the raw bytes, and the user's code if a transform runs.

    A named evaluation set is read as its own sources say and has a key of its own; the window does not apply to it.
    """
    return _key(run, raw_inputs(_raw(run, set_name)[0]), set_name)


def find_dataset(run: Run, set_name: str | None = None) -> Dataset | None:
    """The sealed dataset of this run's raw files, or of a named evaluation set; None if it is not made yet."""
    return newest_dataset(run.store, dataset_key(run, set_name))


def shard_key(run: Run, contract: ContractReport | None) -> str | None:
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
            request = features_request(run, dataset, in_order(dataset))
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
        *remarks(run, dataset),
    ]
    sentence = "; ".join(filter(None, clauses))
    return StageOutcome(dataset, "reused" if reused_from else "ran", sentence, dataset.ref, reused_from, lacks=lacks)


def unmade(name: str) -> str:
    """Why a named evaluation set cannot be scored yet."""
    return f"there is no dataset of evaluate.sets.{name} for its files and these shard settings"


def _key(run: Run, inputs: list[Any] | None, set_name: str | None = None) -> str:
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


def _raw(run: Run, set_name: str | None) -> tuple[list[SourceFile], list[SourceSpec]]:
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


def _preparation(spec: PipelineSpec) -> dict[str, Any]:
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
