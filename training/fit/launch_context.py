"""A rank's settings: the launch file of its generation and its environment, read once, before torch is imported."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_contracts.errors import UsageError
from data_contracts.handoffs import Checkpoint, Dataset, Ref
from data_contracts.messages.gang import StopAt
from data_contracts.pipeline_spec import TrainSpec
from data_contracts.quoting import PROJECT
from infra.gang.rank_files import DATASET, SCRATCH, STORE, read_launch, store_options
from infra.store import Store, open_store


@dataclass(frozen=True)
class Context:
    """A rank's place in its gang, and what it trains.

    Attributes:
        training: the training's directory below the store's root.
        lightning: the LightningCLI config, inlined.
        mixture: the datasets that its rows are mixed with, by name.
        dataset_path: local folder of the sealed dataset; None with `data: external`.
        init_from: the checkpoint or import that gives the module its first weights.
        resume: the checkpoint to resume from.
        skip: samples (from, to) that are skipped, because a training with them diverged.
        stop: where this generation ends; None: with the training.
        targets: entries of a batch that metrics take for the truth.
        sealed: the content of `train.json` in every checkpoint: everything that a module is rebuilt from.
        scratch: folder shared by this node's ranks and their supervisor.
        project: root of the user's unpacked code.
        heartbeat_s: least seconds between two reports.
    """

    training: str
    generation: int
    train: TrainSpec
    lightning: Mapping[str, Any]
    dataset: Dataset | None
    mixture: dict[str, Dataset]
    dataset_path: Path | None
    init_from: Ref | None
    resume: Checkpoint | None
    skip: list[tuple[int, int]]
    stop: StopAt | None
    provenance: Mapping[str, object]
    targets: list[str]
    sealed: Mapping[str, object]
    heartbeat_s: float
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    devices: int
    nodes: int
    scratch: Path
    project: Path
    store_uri: str
    store_options: Mapping[str, object]

    @property
    def key(self) -> str:
        """The training's reuse key."""
        return self.training.rsplit("/", 1)[-1].rsplit("-", 1)[0]

    @property
    def settings(self) -> Mapping[str, Any]:
        """`train` as JSON, with the Lightning config inlined."""
        return self.train.model_dump(mode="json")

    def open_store(self) -> Store:
        """The store that the launcher named."""
        return open_store(self.store_uri, self.store_options, create=False)


# Makes callbacks that the Trainer gets after ours.
MakeCallbacks = Callable[[Context, Store], Sequence[Any]]


def read_context(env: Mapping[str, str] = os.environ) -> Context:
    """The context of this process's rank.

    Raises:
        UsageError: a setting cannot be sealed.
        TrainwrightError: the launch file cannot be read, for example because it has a newer schema.
    """
    launch = read_launch(env)
    train = TrainSpec.model_validate(launch.train)
    assert isinstance(train.lightning, dict), "the launcher inlines the Lightning config"
    folder = env.get(DATASET, "")
    try:
        json.dumps(launch.sealed, allow_nan=False)
    except ValueError as error:
        raise UsageError(
            "train.lightning holds a number that is not finite, which a checkpoint's settings cannot.",
            remedy="Leave it out, or write a finite one.",
        ) from error
    return Context(
        training=launch.training,
        generation=launch.generation,
        train=train,
        lightning=train.lightning,
        dataset=launch.dataset,
        mixture=launch.mixture,
        dataset_path=Path(folder) if folder else None,
        init_from=launch.init_from,
        resume=launch.resume,
        skip=launch.skip,
        stop=launch.stop,
        provenance=launch.provenance,
        targets=launch.targets,
        sealed=launch.sealed,
        heartbeat_s=launch.heartbeat_s,
        rank=int(env["RANK"]),
        local_rank=int(env["LOCAL_RANK"]),
        world_size=int(env["WORLD_SIZE"]),
        local_world_size=int(env.get("LOCAL_WORLD_SIZE", env["WORLD_SIZE"])),
        devices=launch.devices,
        # A gang that was shrunk has fewer nodes than the spec asks for.
        nodes=int(env["WORLD_SIZE"]) // launch.devices,
        scratch=Path(env[SCRATCH]),
        project=Path(env[PROJECT]).resolve(),
        store_uri=env[STORE],
        store_options=store_options(env),
    )
