"""A training that cannot fit its machine is refused with what to change, before a node is launched."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import UsageError
from data_contracts.messages.commands import ModuleSizes
from data_contracts.pipeline_spec import TrainSpec
from flows.stages import stages
from infra.prices import VARIABLE, machine
from infra.store import layout, open_store
from tasks.queries.plan import plan
from tasks.run.run import open_run
from tasks.run.spec_check import read_spec
from tasks.stages.train import check_memory
from tests.support.tiny import SPEC, write_project

pytestmark = pytest.mark.usefixtures("home")
GIB = 2**30
# A module of 7 billion float32 parameters in 32 layers, with Adam.
LARGE = {
    "parameters": 26 * GIB, "gradients": 26 * GIB, "state": 52 * GIB, "buffers": 0, "unit": 26 * GIB, "layer": GIB // 2,
}  # fmt: skip
SHARDED = {**LARGE, "unit": GIB}
SMALL = {"parameters": GIB, "gradients": GIB, "state": 2 * GIB, "buffers": 0, "unit": GIB, "layer": GIB // 8}

REFUSED: dict[str, tuple[dict[str, Any], str, dict[str, int], str]] = {
    "replicas": (
        {"devices": 8},
        "aws-p5.48xlarge",
        LARGE,
        "train.machine: ddp needs 104.0 GiB of memory on each device (26.0 GiB of parameters, 26.0 GiB of gradients, "
        "52.0 GiB of optimizer state), without activations, but a device of aws-p5.48xlarge has 80.0 GiB. Use "
        "train.strategy fsdp with train.shard_modules over 8 devices, or take train.machine aws-p5en.48xlarge (141.0 "
        "GiB a device).",
    ),
    "one device of a small machine": (
        {"strategy": "single"},
        "aws-g5.xlarge",
        LARGE,
        "train.machine: single needs 104.0 GiB of memory on each device (26.0 GiB of parameters, 26.0 GiB of "
        "gradients, 52.0 GiB of optimizer state), without activations, but a device of aws-g5.xlarge has 24.0 GiB. "
        "Use train.strategy fsdp with train.shard_modules over 6 devices, or take train.machine aws-p5en.48xlarge "
        "(141.0 GiB a device).",
    ),
    "all gathered at once": (
        {"strategy": "fsdp", "devices": 8},
        "aws-p4d.24xlarge",
        LARGE,
        "train.machine: fsdp needs 65.0 GiB of memory on each device (26.0 GiB of parameters, 26.0 GiB of gradients, "
        "52.0 GiB of optimizer state sharded over 8, and a unit of 26.0 GiB gathered), without activations, but a "
        "device of aws-p4d.24xlarge has 40.0 GiB. Shard smaller modules (train.shard_modules), or take train.machine "
        "aws-p4de.24xlarge (80.0 GiB a device).",
    ),
    "too few to shard over": (
        {"strategy": "hsdp", "nodes": 8, "shard_ranks": 2, "shard_modules": ["Block"]},
        "aws-g5.xlarge",
        SHARDED,
        "train.machine: hsdp needs 54.0 GiB of memory on each device (26.0 GiB of parameters, 26.0 GiB of gradients, "
        "52.0 GiB of optimizer state sharded over 2, and a unit of 1.0 GiB gathered), without activations, but a "
        "device of aws-g5.xlarge has 24.0 GiB. Use train.strategy fsdp with train.shard_modules over 8 devices, or "
        "take train.machine azure-nc24ads-a100-v4 (80.0 GiB a device).",
    ),
    "a gang that shrank": (
        {"strategy": "fsdp", "nodes": 8, "min_nodes": 2, "shard_modules": ["Block"]},
        "aws-g5.xlarge",
        SHARDED,
        "train.machine: fsdp needs 54.0 GiB of memory on each device on train.min_nodes = 2 (26.0 GiB of parameters, "
        "26.0 GiB of gradients, 52.0 GiB of optimizer state sharded over 2, and a unit of 1.0 GiB gathered), without "
        "activations, but a device of aws-g5.xlarge has 24.0 GiB. Raise train.min_nodes.",
    ),
    "beyond everything": (
        {"strategy": "single", "global_batch_size": 1},
        "aws-p5en.48xlarge",
        {name: 9 * size for name, size in LARGE.items()},
        "train.machine: single needs 936.0 GiB of memory on each device (234.0 GiB of parameters, 234.0 GiB of "
        "gradients, 468.0 GiB of optimizer state), without activations, but a device of aws-p5en.48xlarge has 141.0 "
        "GiB. Make the module smaller.",
    ),
}


def spec(**settings: Any) -> TrainSpec:
    return TrainSpec.model_validate({"lightning": {}, "global_batch_size": 48, **settings})


@pytest.mark.parametrize(("settings", "name", "sizes", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_fit_is_refused(settings: dict[str, Any], name: str, sizes: dict[str, int], sentence: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(sentence)}$"):
        check_memory(spec(**settings), machine(name), ModuleSizes(**sizes))


@pytest.mark.parametrize(
    ("settings", "name", "sizes"),
    [
        ({"strategy": "single"}, "aws-g5.xlarge", SMALL),
        ({"devices": 8}, "aws-p5en.48xlarge", LARGE),
        ({"strategy": "fsdp", "devices": 8, "shard_modules": ["Block"]}, "aws-p4d.24xlarge", SHARDED),
        ({"strategy": "hsdp", "nodes": 2, "devices": 8, "shard_modules": 1000}, "aws-p4d.24xlarge", SHARDED),
    ],
)
def test_what_fits_passes(settings: dict[str, Any], name: str, sizes: dict[str, int]) -> None:
    check_memory(spec(**settings), machine(name), ModuleSizes(**sizes))
    with pytest.raises(UsageError, match="of memory on each device"):
        check_memory(spec(**settings), machine(name), ModuleSizes(**{part: 10 * size for part, size in sizes.items()}))


@pytest.mark.warm
def test_a_plan_weighs_the_users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "machines.yaml"
    # 98 parameters of 4 bytes; as much again of gradients, twice as much of Adam's state: 1568 bytes and six counters.
    for name, room in (("exact", 98 * 16 + 4 * 4), ("short", 98 * 16 + 4 * 4 - 1)):
        with mine.open("a") as file:
            file.write(f"{name}: {{devices: 1, memory_bytes: {room}, usd_per_hour: 0, price_date: 2026-01-31}}\n")
    monkeypatch.setenv(VARIABLE, str(mine))
    path = write_project(tmp_path / "tiny", {"train": {**SPEC["train"], "machine": "exact"}})
    store = str(tmp_path / "store")
    assert plan(open_run(read_spec(path), store_uri=store), stages())[2].action == "run"
    with pytest.raises(UsageError, match=r"^train\.machine: single needs 1\.5 KiB of memory on each device"):
        plan(open_run(read_spec(path, ["train.machine=short"]), store_uri=store), stages())
    assert not open_store(store).list("trainings"), layout.runs()


@pytest.mark.warm
def test_what_cannot_be_sharded_is_refused_before_a_node_is_booked(tmp_path: Path) -> None:
    train = {**SPEC["train"], "strategy": "fsdp", "devices": 2, "shard_modules": ["Block"]}
    path, store = write_project(tmp_path / "tiny", {"train": train}), str(tmp_path / "store")
    with pytest.raises(UsageError, match=r"^train\.shard_modules: the module has no Block\. It has "):
        plan(open_run(read_spec(path), store_uri=store), stages())
    assert not open_store(store).list("trainings"), layout.runs()
