"""shard: raw rows become sealed shards. The work is done in a child process, where the user's transform may run."""

from __future__ import annotations

from typing import Any

from data_contracts.canonical import reuse_key
from data_contracts.handoffs import ContractReport, Dataset, SourceFile
from infra.handoffs import read_handoff
from infra.launch.child import run_child
from tasks.run import Run
from tasks.stage import Done, stage
from tasks.validate import raw_inputs, reading

VERSION = 1


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
    dataset, reused = shard_files(run, run.resolved.files, contract)
    for name, files in run.resolved.sets.items():
        shard_files(run, files, contract, set_name=name)
    rows = ", ".join(f"{split} {dataset.rows(split):,}" for split in in_order(dataset))
    num_shards = sum(len(shards) for shards in dataset.splits.values())
    sentence = f"{num_shards} {dataset.format} shards: {rows} rows"
    return Done(dataset, "reused" if reused else "ran", sentence, dataset.ref, dataset.ref.uri if reused else None)


def in_order(dataset: Dataset) -> list[str]:
    """A dataset's splits as people name them: train, val and test first, others by name."""
    usual = ("train", "val", "test")
    return sorted(dataset.splits, key=lambda name: (usual.index(name) if name in usual else len(usual), name))


def dataset_key(run: Run, files: list[SourceFile], set_name: str | None = None) -> str:
    """Reuse key of a dataset: the shards' settings, the raw bytes, and the user's code if a transform runs."""
    spec = run.spec
    assert spec.shards is not None
    settings = {**spec.shards.model_dump(mode="json"), **reading(run), "all_rows_in_one_split": set_name is not None}
    inputs = raw_inputs(run) if set_name is None else [file.blake3 for file in files]
    return reuse_key("shard", VERSION, settings, inputs, run.resolved.code_digest if spec.shards.transform else None)


def shard_files(
    run: Run, files: list[SourceFile], contract: ContractReport | None, set_name: str | None = None
) -> tuple[Dataset, bool]:
    """The dataset of these raw files and whether it was reused; `set_name`: of a named evaluation set."""
    key = dataset_key(run, files, set_name)
    found = run.store.newest("datasets", key)
    if found is not None:
        return read_handoff(run.store, found, Dataset), True
    answer = run_child("training.shard_worker", _request(run, files, key, contract, set_name))
    return Dataset.from_json(answer), False


def _request(
    run: Run, files: list[SourceFile], key: str, contract: ContractReport | None, set_name: str | None
) -> dict[str, Any]:
    spec = run.spec
    assert spec.shards is not None
    assert not isinstance(spec.data, str)
    sources = spec.data.source if set_name is None else spec.evaluate.sets[set_name].source or []
    return {
        **run.store_request(),
        "uri": run.store.next_attempt("datasets", key),
        "key": key,
        "name_of_split_for_all": None if set_name is None else "test",
        "files": [file.to_json() for file in files],
        "sources": [source.model_dump(mode="json") for source in sources],
        "root": run.resolved.root,
        "window": run.resolved.window,
        "window_column": spec.data.window.column if spec.data.window else None,
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
