"""Whatever a module is made of, every strategy trains it as one rank does, or refuses it before the first step.

Everything is float64, so 1e-10 tells another order of additions from another training.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.gang import Gang, answer, make_dataset, train_together
from training.checkpoint import read_tensors

PROJECT = Path(__file__).parent / "project"
CLOSE = {"mixed": 1e-7}  # a part of it is float32
STEPS = 8
# Module, its arguments, and what `train` has besides.
NATURES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "tied": ("Tied", {}, {"shard_modules": ["Embedding", "Unembedding", "Linear"]}),
    "numbers": ("Scaled", {"optimizer": "AdamW"}, {"shard_modules": ["Linear"]}),
    "mixed": ("Mixed", {}, {}),
    "unused": ("Sometimes", {}, {}),
    "accumulated": ("Sometimes", {}, {"micro_batch_size": 4}),
    "unused alike": ("Sometimes", {"alike": True}, {}),
    "lazy": ("Lazy", {}, {"shard_modules": ["Linear"]}),
    "toggled": ("Toggles", {}, {}),
}
# Ranks use other parameters than each other.
DDP_ALONE = ("unused", "accumulated")
# Optimizers that are wrong on shards, and some that are right there.
REFUSED = ("Adafactor", "LBFGS", "Muon")
NATURES |= {name: ("Base", {"optimizer": name, "lr": 0.02}, {}) for name in ("Lars", "Lion", "NAdam", *REFUSED)}
WAYS = {"single": {}, "ddp": {}, "fsdp": {}, "hsdp": {"shard_ranks": 2}}
Trained = Callable[[str, str], dict[str, torch.Tensor] | str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The weights after the last step, for a way of sharing the work and a nature. All of as many ranks are trained at
    once."""
    folder = tmp_path_factory.mktemp("natures")
    dataset = make_dataset(folder / "rows", {"train": 160})

    def make(way: str, nature: str) -> Gang:
        model, arguments, train = NATURES[nature]
        sharded = way in ("fsdp", "hsdp")
        settings = {
            "lightning": {
                "model": {"class_path": f"natures.{model}", "init_args": arguments},
                "trainer": {"accelerator": "cpu", "max_epochs": -1, "max_steps": STEPS},
            },
            "strategy": way, "global_batch_size": 16, "batch": ["x", "y"], "seed": 3, "collective_timeout_s": 60,
            "checkpoint": {"every_steps": 10**6}, **WAYS[way],
            **{name: value for name, value in train.items() if sharded or name != "shard_modules"},
        }  # fmt: skip
        ranks = 1 if way == "single" else 4 if way == "hsdp" else 2
        return Gang(folder / way / nature, settings, PROJECT, dataset, folder / "rows", ranks)

    @functools.cache
    def of_way(way: str) -> dict[str, dict[str, torch.Tensor] | str]:
        made = {nature: make(way, nature) for nature in natures(way)}
        train_together(list(made.values()))
        return {nature: outcome(gang) for nature, gang in made.items()}

    return lambda way, nature: of_way(way)[nature]


def outcome(gang: Gang) -> dict[str, torch.Tensor] | str:
    """The weights at the end, or what the first rank says where it refuses."""
    refused = answer(gang.scratch(0), 0, "error")
    if refused is None:
        return dict(read_tensors(gang.checkpoint_folder(gang.end())))
    assert refused["cause"] == "usage", refused
    return f"{refused['message']} {refused['remedy']}"


def natures(way: str) -> list[str]:
    """What a way of sharing the work can train, or must refuse."""
    return [nature for nature in NATURES if way in ("single", "ddp") or nature not in DDP_ALONE]


@pytest.mark.parametrize(
    ("way", "nature"),
    [
        pytest.param(way, nature, marks=[pytest.mark.slow] if way == "hsdp" else [])
        for way in ("ddp", "fsdp", "hsdp")
        for nature in natures(way)
    ],
)
def test_every_strategy_trains_it_as_one_rank_does(way: str, nature: str, trained: Trained) -> None:
    alone, shared = trained("single", nature), trained(way, nature)
    assert isinstance(alone, dict)
    if way != "ddp" and nature in REFUSED:
        assert isinstance(shared, str)
        assert f"train.strategy: {nature} does not change" in shared
        assert "Set train.strategy: ddp" in shared
        return
    assert isinstance(shared, dict), shared
    weights = [name for name in alone if name.startswith("state_dict/")]
    assert shared.keys() >= set(weights)
    off = {name: float((alone[name] - shared[name]).abs().max()) for name in weights}
    assert max(off.values()) < CLOSE.get(nature, 1e-10), off
