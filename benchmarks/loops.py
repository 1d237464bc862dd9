"""The peers of `step.py`, `gpu.py` and `tests/gpu/kit.py`, as programs: a bare PyTorch loop (DDP on several ranks),
Lightning's Trainer.

    python benchmarks/loops.py {bare,lightning} SETTINGS

SETTINGS is JSON: `model` (class of modules.py, or of `module`) with `init_args`, `data` (folder of `<column>.npy`),
`batch_size` of a rank, `steps`, `precision`, `accelerator`; for the bare loop also `resident` (one batch, which lies on
the device) and `sharded` (FSDP2 instead of DDP, on one rank, too). Rows are gathered a batch at a time, which is the
fastest that torch's DataLoader can.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import modules
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, RandomSampler


class Rows(Dataset):
    """Columns in memory; an index is a list of rows."""

    def __init__(self, folder: Path) -> None:
        self.columns = {path.stem: torch.from_numpy(np.load(path)) for path in sorted(folder.glob("*.npy"))}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, rows: list[int]) -> dict[str, torch.Tensor]:
        return {name: column[rows] for name, column in self.columns.items()}


def loader(told: dict[str, Any], world_size: int) -> DataLoader:
    """Shuffled batches."""
    rows = Rows(Path(told["data"]))
    one_by_one = DistributedSampler(rows, drop_last=True) if world_size > 1 else RandomSampler(rows)
    batches = BatchSampler(one_by_one, told["batch_size"], drop_last=True)
    return DataLoader(rows, sampler=batches, batch_size=None, pin_memory=told["accelerator"] == "gpu")


def bare(told: dict[str, Any]) -> None:
    """Nothing but the steps."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    on_gpu = told["accelerator"] == "gpu"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
    sharded = told.get("sharded", False)
    if world_size > 1 or sharded:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    module = made(told).to(device)
    if sharded:
        fully_shard(module, mesh=init_device_mesh(device.type, (world_size,)))
    module.setup("fit")
    model = torch.nn.parallel.DistributedDataParallel(module) if world_size > 1 and not sharded else module
    optimizer = module.configure_optimizers()
    half = (
        torch.autocast(device.type, torch.bfloat16) if told["precision"] == "bf16-mixed" else contextlib.nullcontext()
    )
    source: Iterable[Any] = loader(told, world_size)
    if told.get("resident"):
        source = [{name: column.to(device) for name, column in next(iter(source)).items()}]
    for batch in batches(source, told["steps"]):
        module.tick()
        if module.ended:
            break
        given = {name: column.to(device, non_blocking=True) for name, column in batch.items()}
        with half:
            loss = model(given)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    module.write()


def batches(of: Iterable[Any], count: int) -> Iterator[Any]:
    """So many batches, epoch after epoch."""
    taken = 0
    while True:
        for batch in of:
            if taken == count:
                return
            taken += 1
            yield batch


def lightning(told: dict[str, Any]) -> None:
    """Lightning's Trainer on one device, with all that it may leave out left out."""
    import lightning as L

    trainer = L.Trainer(
        accelerator=told["accelerator"], devices=1, precision=told["precision"], max_steps=told["steps"], max_epochs=-1,
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(made(told), loader(told, 1))


def made(told: dict[str, Any]) -> modules.Timed:
    """The module, with the same first weights each time."""
    torch.manual_seed(1)
    module = importlib.import_module(told.get("module", "modules"))
    found: modules.Timed = getattr(module, told["model"])(**told["init_args"])
    return found


if __name__ == "__main__":
    {"bare": bare, "lightning": lightning}[sys.argv[1]](json.loads(sys.argv[2]))
