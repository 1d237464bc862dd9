"""Lay out what a node's ranks need on this machine: the user's code, its environment, and the dataset."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from data_contracts.errors import CorruptError
from data_contracts.messages.gang import Launch
from infra.environments.cache import interpreter
from infra.project.code_bundle import unpack
from infra.records.datasets import local_dataset, mixed
from infra.records.environments import import_places, note_environment
from infra.store import Store, layout
from infra.store.lease import patiently


@dataclass(frozen=True)
class Inputs:
    """What a node's ranks need.

    Attributes:
        project: folder of the user's code.
        python: the interpreter of its environment.
        dataset: folder of the dataset; None with external data.
    """

    project: Path
    python: str
    dataset: Path | None


def lay_out_inputs(store: Store, launch: Launch, project: Path) -> Inputs:
    """Unpack the code into the new folder `project`, make its environment if needed, and lay out the dataset.

    Raises:
        CorruptError: the dataset is gone, or it or the code is not what was sealed.
        UsageError: the packages of the environment cannot be installed here.
    """
    project.mkdir()
    if (code := launch.code) is not None:
        patiently(lambda: unpack(store, code, project, code_digest=launch.code_digest))
    python = patiently(lambda: interpreter(project))
    note_environments(store, launch, sys.executable, *import_places(project))
    if launch.dataset is None:
        return Inputs(project, python, None)
    sealed = mixed(launch.dataset, launch.mixture)
    try:
        return Inputs(project, python, patiently(lambda: local_dataset(store, sealed)))
    except FileNotFoundError as error:
        raise CorruptError(f"The dataset {sealed.ref.uri} is missing.") from error


def note_environments(store: Store, launch: Launch, *places: str) -> None:
    """Write down for the launch's run what this node's processes import from, before they begin; a game has no run."""
    run_id = launch.provenance.get("run_id") or layout.run_of_errand(launch.training)
    for place in set(places) if run_id is not None else ():
        patiently(partial(note_environment, store, str(run_id), place))
