"""Lay out what a node's ranks read on this machine: the user's code and the dataset."""

from __future__ import annotations

from pathlib import Path

from data_contracts.errors import CorruptError
from data_contracts.messages.gang import Launch
from infra.code_bundle import unpack
from infra.datasets import local_dataset, mixed
from infra.store import Store
from infra.store.retry import patiently


def lay_out_inputs(store: Store, launch: Launch, project: Path) -> Path | None:
    """Unpack the code into the new folder `project`; returns the dataset's local folder, None with external data.

    CorruptError if the dataset is gone, or if either is not what was sealed.
    """
    project.mkdir()
    if (code := launch.code) is not None:
        patiently(lambda: unpack(store, code, project, code_digest=launch.code_digest))
    if launch.dataset is None:
        return None
    sealed = mixed(launch.dataset, launch.mixture)
    try:
        return patiently(lambda: local_dataset(store, sealed))
    except FileNotFoundError as error:
        raise CorruptError(f"The dataset {sealed.ref.uri} is missing.") from error
