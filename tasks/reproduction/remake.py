"""The child process that makes a model again in an empty store: `python -m tasks.reproduction.remake REQUEST`.

It runs with the interpreter of the environment that the model is made again in, without Prefect's server. It writes
`made.json` beside the request, or `error.json` with the cause.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from pydantic import Field

from data_contracts.errors import TrainwrightError
from data_contracts.handoffs import Checkpoint, ContractReport, Dataset, Evaluation, Record, Ref
from data_contracts.messages.children import StoreAddress
from data_contracts.pipeline_spec.base import run_locally
from data_contracts.quoting import type_and_text
from data_contracts.resolved import Resolved
from infra.audit import actor, now
from infra.processes.processes import terminable
from infra.sources.named_places import NamedPlaces
from infra.store import Store, open_store
from infra.store.store import copy_sealed
from tasks.reproduction.recorded import read_recorded
from tasks.reproduction.sources import moved
from tasks.run.run import Run, new_run_id
from tasks.stages.evaluate import evaluate
from tasks.stages.shard import shard
from tasks.stages.train import train
from tasks.stages.validate import validate
from tasks.stages.verify import verify

REQUEST, MADE, ERROR, STORE = "request.json", "made.json", "error.json", "store"


class RemakeRequest(Record):
    """What is to be made again.

    Attributes:
        source: the store of the model; name: the model, with its version (`tiny@3`).
        data: the folder that has the raw files now; None: they are where they were.
        addresses: the places on S3 that may be read.
    """

    source: StoreAddress
    name: str
    data: str | None = None
    addresses: list[str] = Field(default_factory=list)


class Made(Record):
    """What was made: hand-offs in the new store; None where there is none."""

    contract: Ref | None = None
    dataset: Ref | None = None
    checkpoint: Checkpoint
    evaluation: Evaluation


def main(path: Path) -> int:
    """Carry the request out; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for noisy in ("httpx", "fsspec", "botocore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    folder = path.parent
    try:
        with terminable():
            request = RemakeRequest.model_validate_json(path.read_text())
            made = remake(request, folder)
    except BaseException as error:
        known = error if isinstance(error, TrainwrightError) else TrainwrightError(f"{type_and_text(error)}.")
        (folder / ERROR).write_text(json.dumps(known.to_json()))
        if known is not error:
            raise
        return known.exit_code
    (folder / MADE).write_text(made.model_dump_json())
    return 0


def remake(request: RemakeRequest, folder: Path) -> Made:
    """Make the model again in `folder/store`, which must be new."""
    address = request.source
    source = open_store(address.uri, address.options, create=False, pointers=address.pointers)
    recorded = read_recorded(source, request.name)
    store = open_store(str(folder / STORE))
    places = NamedPlaces(None if request.data is None else Path(request.data), tuple(request.addresses))
    resolved = moved(recorded.recipe.resolved, places)
    for ref in recorded.copied:
        copy_sealed(source, store, ref)
    run = Run(inputs_here(resolved, store), store, recorded=False, replay=recorded.replay)
    contract: ContractReport | None = validate(run)
    dataset: Dataset | None = shard(run, contract)
    checkpoint = verify(run, train(run, dataset))
    evaluation = evaluate(run, checkpoint, dataset)
    return Made(
        contract=None if contract is None else contract.ref,
        dataset=None if dataset is None else dataset.ref,
        checkpoint=checkpoint,
        evaluation=evaluation,
    )


def inputs_here(resolved: Resolved, store: Store) -> Resolved:
    """A run's inputs for an empty store on this machine: all work is done here, and there is no champion."""
    spec = {**run_locally(resolved.spec), "store": {"uri": store.uri}}
    for section in ("train", "verify", "evaluate"):
        spec[section] = {**spec[section], "launcher": "local", "pool": None}
    changes = {"run_id": new_run_id(), "spec": spec, "store": store.uri, "champion": None, "fresh": False}
    changes |= {"actor": actor(), "trigger": "cli", "started": now()}
    return resolved.model_copy(update=changes)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
