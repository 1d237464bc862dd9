"""What a rank was told: the launch file of its generation and its environment, read once, before torch is imported."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_contracts.errors import TrainwrightError, UsageError
from data_contracts.handoffs import Checkpoint, Dataset, Ref
from data_contracts.spec import TrainSpec
from infra.store import Store, open_store

SCHEMA = 1


@dataclass(frozen=True)
class Context:
    """A rank's place in its gang and what it trains.

    Attributes:
        training: the training's directory below the store's root.
        lightning: the LightningCLI config, inlined.
        mixture: the datasets that its rows are mixed with, by name.
        dataset_path: local folder of the sealed dataset; None with `data: external`.
        init_from: the checkpoint or import whose weights the module begins with.
        resume: the checkpoint to go on from.
        skip: samples (from, to) that are passed over, because a training with them diverged.
        sealed: what every checkpoint holds as `train.json`: all that a module is rebuilt from.
        scratch: folder shared by this node's ranks and their supervisor.
        project: root of the user's unpacked code.
        heartbeat_s: least seconds between two reports.
    """

    training: str
    generation: int
    train: TrainSpec
    lightning: dict[str, Any]
    dataset: Dataset | None
    mixture: dict[str, Dataset]
    dataset_path: Path | None
    init_from: Ref | None
    resume: Checkpoint | None
    skip: list[tuple[int, int]]
    provenance: dict[str, Any]
    sealed: dict[str, Any]
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
    store_options: dict[str, Any]

    @property
    def key(self) -> str:
        """The training's reuse key."""
        return self.training.rsplit("/", 1)[-1].rsplit("-", 1)[0]

    @property
    def settings(self) -> dict[str, Any]:
        """`train` as JSON, with the Lightning config inlined."""
        return self.train.model_dump(mode="json")

    def open_store(self) -> Store:
        """The store that the launcher named."""
        return open_store(self.store_uri, self.store_options, create=False)


def read_context(env: Mapping[str, str] = os.environ) -> Context:
    """The context of the rank that this process is.

    Raises:
        UsageError: a setting cannot be sealed.
        TrainwrightError: the launch file has a newer schema.
    """
    told = json.loads(Path(env["TRAINWRIGHT_LAUNCH"]).read_text())
    if told["schema_version"] > SCHEMA:
        raise TrainwrightError(f"launch.json has schema {told['schema_version']}, newer than the {SCHEMA} read here.")
    train = TrainSpec.model_validate(told["train"])
    assert isinstance(train.lightning, dict), "the launcher inlines the Lightning config"
    folder = env.get("TRAINWRIGHT_DATASET", "")
    return Context(
        training=told["training"],
        generation=told["generation"],
        train=train,
        lightning=train.lightning,
        dataset=Dataset.from_json(told["dataset"]) if told["dataset"] else None,
        mixture={name: Dataset.from_json(one) for name, one in told.get("mixture", {}).items()},
        dataset_path=Path(folder) if folder else None,
        init_from=Ref.model_validate(told["init_from"]) if told.get("init_from") else None,
        resume=Checkpoint.from_json(told["resume"]) if told["resume"] else None,
        skip=[(first, end) for first, end in told.get("skip", [])],
        provenance=told["provenance"],
        sealed=_sealable(told.get("sealed", {})),
        heartbeat_s=told["heartbeat_s"],
        rank=int(env["RANK"]),
        local_rank=int(env["LOCAL_RANK"]),
        world_size=int(env["WORLD_SIZE"]),
        local_world_size=int(env.get("LOCAL_WORLD_SIZE", env["WORLD_SIZE"])),
        devices=told["devices"],
        # A gang that was shrunk has fewer than were asked for.
        nodes=int(env["WORLD_SIZE"]) // told["devices"],
        scratch=Path(env["TRAINWRIGHT_SCRATCH"]),
        project=Path(env["TRAINWRIGHT_PROJECT"]).resolve(),
        store_uri=env["TRAINWRIGHT_STORE"],
        store_options=json.loads(env.get("TRAINWRIGHT_STORE_OPTIONS") or "{}"),
    )


def _sealable(settings: dict[str, Any]) -> dict[str, Any]:
    try:
        json.dumps(settings, allow_nan=False)
    except ValueError as error:
        raise UsageError(
            "train.lightning holds a number that is not finite, which a checkpoint's settings cannot.",
            remedy="Leave it out, or write a finite one.",
        ) from error
    return settings
