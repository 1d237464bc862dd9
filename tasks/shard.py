"""shard: raw rows become sealed shards. The work is done in a child process, where the user's transform may run."""

from __future__ import annotations

from typing import Any

from data_contracts.canonical import canonical, reuse_key
from data_contracts.handoffs import ContractReport, Dataset, Ref, SourceFile
from data_contracts.spec import SourceSpec
from infra.datasets import dataset_to_extend, newest_dataset
from infra.launch.child import run_child
from tasks.progress import shown
from tasks.run import Run
from tasks.stage import Done, stage
from tasks.validate import raw_inputs, reading, ways

VERSION = 2


@stage("shard")
def shard(run: Run, contract: ContractReport | None) -> Done[Dataset | None]:
    """Make the dataset (and those of named evaluation sets), or reuse the one with the same key.

    Returns:
        The dataset; None with `data: external`.

    Raises:
        UsageError: a split without rows, a key or time on two sides, a column the format cannot hold.
        UserCodeError: the user's transform raised.
    """
    if run.external:
        return Done(None, "skipped", "data is external: the user's data module reads it")
    found = find_dataset(run)
    dataset = found or _make(run, contract)
    for name in run.resolved.sets:
        find_dataset(run, name) or _make(run, None, name)
    reused = found is not None
    rows = ", ".join(f"{split} {dataset.rows(split):,}" for split in in_order(dataset))
    num_shards = sum(len(shards) for shards in dataset.splits.values())
    sentence = f"{num_shards} {dataset.format} shards: {rows} rows"
    return Done(dataset, "reused" if reused else "ran", sentence, dataset.ref, dataset.ref.uri if reused else None)


def in_order(dataset: Dataset) -> list[str]:
    """A dataset's splits as people name them: train, val and test first, others by name."""
    usual = ("train", "val", "test")
    return sorted(dataset.splits, key=lambda name: (usual.index(name) if name in usual else len(usual), name))


def dataset_key(run: Run, set_name: str | None = None) -> str:
    """Reuse key of a dataset: the shards' settings, the raw bytes, and the user's code if a transform runs.

    A named evaluation set is read as its own sources say and goes by its own key; the window is not for it.
    """
    return _key(run, raw_inputs(_raw(run, set_name)[0]), set_name)


def find_dataset(run: Run, set_name: str | None = None) -> Dataset | None:
    """The sealed dataset of this run's raw files, or of a named evaluation set; None if it is still to be made."""
    return newest_dataset(run.store, dataset_key(run, set_name))


def _key(run: Run, inputs: list[Any], set_name: str | None = None) -> str:
    """The reuse key with these inputs; without any, what datasets that can be extended by one another share."""
    shards = run.spec.shards
    assert shards is not None
    settings = shards.model_dump(mode="json", exclude=set(shards.UNKEYED))
    # Canonical JSON sorts keys, but which share comes first decides who gets which rows.
    for name in ("fractions", "boundaries"):
        settings["split"][name] = list(settings["split"][name].items())
    sources = ways(_raw(run, set_name)[1])
    how = reading(run) if set_name is None else {"window": None, "window_column": None, "sources": sources}
    settings = {**settings, **how, "all_rows_in_one_split": set_name is not None}
    return reuse_key("shard", VERSION, settings, inputs, run.resolved.code_digest if shards.transform else None)


def _raw(run: Run, set_name: str | None) -> tuple[list[SourceFile], list[SourceSpec]]:
    """Files and sources of the pipeline's data, or of a named evaluation set."""
    if set_name is not None:
        return run.resolved.sets[set_name], run.spec.evaluate.sets[set_name].source or []
    assert not isinstance(run.spec.data, str)
    return run.resolved.files, run.spec.data.source


def _make(run: Run, contract: ContractReport | None, set_name: str | None = None) -> Dataset:
    request = _request(run, contract, set_name)
    assert run.spec.shards is not None
    runner = run.spec.shards.runner
    with shown("shard") as progress:
        if runner == "local":
            answer = run_child("training.shard_worker", request, on_progress=progress)
        else:
            from tasks.on_dask import shard_on_dask  # Dask and Prefect take seconds to import

            answer = shard_on_dask(run, runner, request, progress)
    return Dataset.from_json(answer)


def _extension(run: Run, request: dict[str, Any], parents: list[Ref | None]) -> dict[str, Any]:
    """The request for a dataset that is added to an earlier one, if there is one: only new files are sharded."""
    inputs, series = raw_inputs(run.resolved.files), _key(run, [])
    # Found by whoever adds to this one.
    request = {**request, "settings": {**request["settings"], "series": series, "inputs": inputs}}
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
            new.append(file.to_json())
    provenance = {**request["provenance"], **run.provenance(*parents, parent.ref)}
    return {**request, "files": new, "appended_to": parent.to_json(), "provenance": provenance}


def _request(run: Run, contract: ContractReport | None, set_name: str | None) -> dict[str, Any]:
    spec = run.spec
    assert spec.shards is not None
    assert not isinstance(spec.data, str)
    key = dataset_key(run, set_name)
    files, sources = _raw(run, set_name)
    windowed = set_name is None and spec.data.window is not None
    parents = [contract.ref if contract else None]
    request = {
        **run.store_request(),
        "uri": run.store.next_attempt("datasets", key),
        "key": key,
        "name_of_split_for_all": None if set_name is None else "test",
        "files": [file.to_json() for file in files],
        "sources": [source.model_dump(mode="json") for source in sources],
        "root": run.resolved.root,
        "window": run.resolved.window if windowed else None,
        "window_column": spec.data.window.column if windowed and spec.data.window else None,
        "shards": spec.shards.model_dump(mode="json"),
        "required_splits": ["train", spec.evaluate.split] if set_name is None else ["test"],
        "sensitive": spec.data.sensitive,
        "project": str(run.project()) if spec.shards.transform else None,
        "provenance": {
            **run.provenance(*parents),
            **run.raw_provenance(files, sources),
        },
        "settings": {"files": [file.blake3 for file in files]},
    }
    return _extension(run, request, parents) if spec.shards.append and set_name is None else request
