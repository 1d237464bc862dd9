"""Gangs of gloo ranks on the CPU, one dataset for all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gang import Gang, make_dataset
from tests.support.scoring import Scoring

PROJECT = Path(__file__).parent / "project"


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("dataset") / "files"
    return folder, make_dataset(folder, {"train": 100, "val": 21})


@pytest.fixture(scope="module")
def scoring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scoring]:
    """A store with checkpoints to verify and score; modules of the project are forgotten at the end."""
    before = list(sys.path)
    yield Scoring(tmp_path_factory.mktemp("scoring"), PROJECT)
    sys.path[:] = before
    sys.modules.pop("nets", None)


Make = Callable[..., Gang]


def gang_maker(folder: Path, dataset: tuple[Path, dict[str, Any]]) -> Make:
    """Makes a gang that trains `nets.<model>` for 3 epochs of 6 steps, 4 rows dropped in each."""

    def make(name: str, model: str = "Classifier", *, ranks: int = 2, trainer: Any = None, **train: Any) -> Gang:
        settings = {
            "lightning": {
                "model": {"class_path": f"nets.{model}"},
                "trainer": {"accelerator": "cpu", "max_epochs": 3, "log_every_n_steps": 1, **(trainer or {})},
                **train.pop("lightning", {}),
            },
            "global_batch_size": 16,
            "batch": ["x", "y"],
            "seed": 3,
            "collective_timeout_s": 60,
            **train,
        }
        rows = (None, None) if "data" in settings["lightning"] else (dataset[1], dataset[0])
        return Gang(folder / name, settings, PROJECT, *rows, ranks)

    return make


@pytest.fixture
def gang(tmp_path: Path, dataset: tuple[Path, dict[str, Any]]) -> Make:
    return gang_maker(tmp_path, dataset)


@pytest.fixture(scope="module")
def shared_gang(tmp_path_factory: pytest.TempPathFactory, dataset: tuple[Path, dict[str, Any]]) -> Make:
    """The same, of gangs that the tests of a file share."""
    return gang_maker(tmp_path_factory.mktemp("gangs"), dataset)
