"""The contract on the rows in the shards, after `shards.transform`: which rows are checked, and under which key.

It reads the shards, not the source, and only the columns that the suite names; so it works for a reused dataset, too.
"""

from __future__ import annotations

from pathlib import Path

from data_contracts.canonical import reuse_key
from data_contracts.handoffs import ContractReport, Dataset, SourceFile
from data_contracts.messages.raw_data import ContractRequest
from data_contracts.pipeline_spec import SourceSpec
from infra.records.handoffs import local_dataset, newest_handoff
from tasks.run.run import Run
from tasks.stages.contract.contract_check import code_of
from tasks.stages.contract.raw_rows import suite_settings

FEATURES_VERSION = 1


def features_key(run: Run, dataset: Dataset) -> str | None:
    """Reuse key of the features' report: the suite, what it fails on, what is masked, and the dataset; None without."""
    contract, suite = run.spec.contract, run.resolved.features
    if contract is None or contract.features is None or suite is None or isinstance(run.spec.data, str):
        return None
    settings = suite_settings(suite, contract.features.fail_on, run.spec.data.sensitive)
    return reuse_key("features", FEATURES_VERSION, settings, [dataset.ref.id], code_of(run, suite))


def features_report(run: Run, key: str) -> ContractReport | None:
    """The report under this key, accepted or not; None if there is none yet."""
    return newest_handoff(run.store, "contracts", key, ContractReport)


def features_request(run: Run, dataset: Dataset, splits: list[str]) -> ContractRequest:
    """The check of a dataset's shards, split after split."""
    contract, suite = run.spec.contract, run.resolved.features
    assert contract is not None
    assert contract.features is not None
    assert suite is not None
    assert not isinstance(run.spec.data, str)
    root = local_dataset(run.store, dataset).parents[len(Path(dataset.ref.uri).parts) - 1]
    return ContractRequest(
        suite=suite,
        files=[
            SourceFile(uri=str(root / one.uri / one.path), bytes=one.bytes, blake3=one.blake3, format="parquet")
            for split in splits
            for one in dataset.splits[split]
        ],
        sources=[SourceSpec(uri=str(root))],
        root=run.resolved.root,
        window=None,
        window_column=None,
        fail_on=contract.features.fail_on,
        sensitive=run.spec.data.sensitive,
        may_lack_sensitive=True,
        profile=False,
    )
