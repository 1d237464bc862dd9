"""shard: raw rows become sealed shards. The work is done in a child process, where the user's transform may run."""

from __future__ import annotations

from typing import Any

from data_contracts.canonical import reuse_key
from data_contracts.handoffs import ContractReport, Dataset, SourceFile
from data_contracts.spec import SourceSpec
from infra.handoffs import read_handoff
from infra.launch.child import run_child
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
    spec = run.spec
    assert spec.shards is not None
    settings = spec.shards.model_dump(mode="json")
    # Canonical JSON sorts keys, but which share comes first decides who gets which rows.
    for name in ("fractions", "boundaries"):
        settings["split"][name] = list(settings["split"][name].items())
    files, sources = _raw(run, set_name)
    how = reading(run) if set_name is None else {"window": None, "window_column": None, "sources": ways(sources)}
    settings = {**settings, **how, "all_rows_in_one_split": set_name is not None}
    code = run.resolved.code_digest if spec.shards.transform else None
    return reuse_key("shard", VERSION, settings, raw_inputs(files), code)


def find_dataset(run: Run, set_name: str | None = None) -> Dataset | None:
    """The sealed dataset of this run's raw files, or of a named evaluation set; None if it is still to be made."""
    found = run.store.newest("datasets", dataset_key(run, set_name))
    return None if found is None else read_handoff(run.store, found, Dataset)


def _raw(run: Run, set_name: str | None) -> tuple[list[SourceFile], list[SourceSpec]]:
    """Files and sources of the pipeline's data, or of a named evaluation set."""
    if set_name is not None:
        return run.resolved.sets[set_name], run.spec.evaluate.sets[set_name].source or []
    assert not isinstance(run.spec.data, str)
    return run.resolved.files, run.spec.data.source


def _make(run: Run, contract: ContractReport | None, set_name: str | None = None) -> Dataset:
    return Dataset.from_json(run_child("training.shard_worker", _request(run, contract, set_name)))


def _request(run: Run, contract: ContractReport | None, set_name: str | None) -> dict[str, Any]:
    spec = run.spec
    assert spec.shards is not None
    assert not isinstance(spec.data, str)
    key = dataset_key(run, set_name)
    files, sources = _raw(run, set_name)
    windowed = set_name is None and spec.data.window is not None
    return {
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
            **run.provenance(contract.ref if contract else None),
            **run.raw_provenance(files, sources),
        },
        "settings": {"files": [file.blake3 for file in files]},
    }
