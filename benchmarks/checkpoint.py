"""What a checkpoint costs: the step's stall, the whole save, a verified load, and training while a save runs behind it.

    python benchmarks/checkpoint.py [--quick]

500 MB of parameters and Adam state in one process, on the CPU. Every save makes fresh files; that they are deleted is
synced too, outside of the clock. `stall`: what a step waits for (the look for values that are not finite, the copy, the
start of the thread), beside a plain copy of the same bytes into memory that is there already. `save`: until all is
hashed, synced and sealed, beside safetensors' own writing with fsync. `load`: every byte read against its digest first,
beside a plain `torch.load`; as verify and evaluate take it (tensors as they lie in their mapped files) and as a resumed
training does (in memory of its own), each in a process that has not done it before: in one that has, `torch.load` finds
its memory there and takes a fifth of the time, but nobody loads a checkpoint twice. `behind`: the same steps with a
save running behind them and without.

`tests/gpu/kit.py` measures some of it on a GPU.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import common
from noise import Watch

from data_contracts.handoffs import Ref
from infra.store import open_store
from training.checkpoint.saver import BackgroundWork, Capture, CheckpointTarget, Staging, capture, save
from training.fit.guards import all_finite

BYTES = 500 * 10**6
LAYERS = 16
SETTINGS: dict[str, Any] = {"step": 1}


class Timed:
    """Seconds of a `with` block."""

    def __enter__(self) -> Timed:
        self._since = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._since


class Work:
    """A module, its optimizer's state, and everything that is measured of them."""

    def __init__(self, folder: Path, num_bytes: int, device: str = "cpu", rows: int = 64) -> None:
        width = round((num_bytes / 12 / LAYERS) ** 0.5)
        self.module = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS))).to(device)
        self.rows = torch.randn(rows, width, device=device)
        self.optimizer = torch.optim.Adam(self.module.parameters())
        for parameter in self.module.parameters():
            parameter.grad = torch.randn_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.folder, self.store = folder, open_store(str(folder / "store"))
        self.staging, self.behind = Staging(), BackgroundWork()
        self.flat = {f"model/{name}": value for name, value in self.module.state_dict().items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            self.flat |= {f"optimizer/{number}/{name}": value for name, value in state.items()}
        self.num_bytes = sum(value.nbytes for value in self.flat.values())
        self.into = {
            name: torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda)
            for name, value in self.flat.items()
        }
        self._saved = 0

    # ---- the stall

    def memory_copy(self) -> float:
        """The same bytes into memory that is there already."""
        with Timed() as taken:
            for name, value in self.flat.items():
                self.into[name].copy_(value, non_blocking=True)
            self.wait_for_device()
        return taken.seconds

    def ours_stall(self) -> float:
        """What a step waits for before the save goes on behind it; a step on a device waits for the copies."""
        with Timed() as taken:
            assert all_finite(self.module)
            held = self.captured()
            self.behind.start(lambda: None)
            self.wait_for_device()
        self.behind.wait()
        assert held.files
        return taken.seconds

    def dcp_stall(self) -> float:
        """The stall of torch's own asynchronous save, as it comes."""
        path = self._fresh()
        with Timed() as taken:
            running: Any = dcp.async_save(dict(self.flat), checkpoint_id=str(path), process_group=None, no_dist=True)
        running.result()
        shutil.rmtree(path)
        os.sync()
        return taken.seconds

    # ---- the save

    def ours_save(self) -> float:
        """From the copy to the seal."""
        held = self.captured()
        with Timed() as taken:
            ref = self._seal(held)
        self.store.remove(ref.uri, why="measured", by="benchmark")
        os.sync()
        return taken.seconds

    def safetensors_save(self) -> float:
        """Its own writing of the same tensors to two files, with fsync of files and folder."""
        held, path = self.captured(), self._fresh()
        path.mkdir()
        with Timed() as taken:
            for name, tensors in held.files.items():
                save_file(tensors, path / name)
            common.sync(path)
        shutil.rmtree(path)
        os.sync()
        return taken.seconds

    def torch_save(self) -> float:
        """`torch.save` with fsync."""
        path = self._fresh()
        with Timed() as taken:
            torch.save(self.flat, path)
            common.sync(path)
        path.unlink()
        os.sync()
        return taken.seconds

    def dcp_save(self) -> float:
        """Torch's distributed checkpoint with fsync."""
        path = self._fresh()
        with Timed() as taken:
            dcp.save(dict(self.flat), checkpoint_id=str(path), no_dist=True)
            common.sync(path)
        shutil.rmtree(path)
        os.sync()
        return taken.seconds

    # ---- the load

    def saved(self) -> dict[str, Any]:
        """Where a copy lies in each form."""
        ref, plain, tensors = self._seal(self.captured()), self._fresh(), self._fresh()
        torch.save(self.flat, plain)
        save_file(self.flat, tensors)
        return {"store": self.store.uri, "ref": ref.to_json(), "torch": str(plain), "safetensors": str(tensors)}

    def prepare_loads(self, small: Work) -> dict[str, Callable[[], float]]:
        """The ways to load the same, each time in a process of its own that has loaded the small one before."""
        copies = json.dumps([small.saved(), self.saved()])

        def loaded(way: str) -> Callable[[], float]:
            command = [sys.executable, str(common.HERE / "load_checkpoint.py"), way, copies]
            return lambda: float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.split()[-1])

        return {
            "ours, every byte verified": loaded("view"),
            "torch.load": loaded("torch"),
            "safetensors": loaded("safetensors"),
            "ours, in memory of its own": loaded("own"),
        }

    # ---- training meanwhile

    def steps(self, count: int) -> float:
        """Seconds of some training steps."""
        with Timed() as taken:
            for _ in range(count):
                self.optimizer.zero_grad()
                self.module(self.rows).square().mean().backward()
                self.optimizer.step()
            self.wait_for_device()
        return taken.seconds

    def slowed(self, count: int) -> tuple[float, float]:
        """Seconds of the same steps without and with a save behind them."""
        alone = self.steps(count)
        refs: list[Ref] = []
        held = self.captured()
        self.wait_for_device()  # for the copies, which are the stall
        self.behind.start(lambda: refs.append(self._seal(held)))
        beside = self.steps(count)
        self.behind.wait()
        self.store.remove(refs[0].uri, why="measured", by="benchmark")
        return alone, beside

    def wait_for_device(self) -> None:
        """Wait until a GPU has done everything."""
        if self.rows.is_cuda:
            torch.cuda.synchronize()

    def captured(self) -> Capture:
        """A capture as training takes it."""
        state = {"state_dict": self.module.state_dict(), "optimizer_states": [self.optimizer.state_dict()]}
        return capture(state, {}, 0, staging=self.staging)

    def _seal(self, held: Capture) -> Ref:
        self._saved += 1
        place = CheckpointTarget(
            self.store, f"trainings/t-0/checkpoints/{self._saved}-g0", SETTINGS, {}, {}, self.folder
        )
        return save(place, held, 1, [])

    def _fresh(self) -> Path:
        self._saved += 1
        return self.folder / f"peer-{self._saved}"


def contenders_of(work: Work, small: Path) -> dict[str, dict[str, Callable[[], float]]]:
    """What is measured beside what, by the title of the comparison."""
    return {
        "stall of the step": {"ours": work.ours_stall, "memory copy": work.memory_copy, "DCP async": work.dcp_stall},
        "whole save": {
            "ours: hashed, synced, sealed": work.ours_save,
            "safetensors + fsync": work.safetensors_save,
            "torch.save + fsync": work.torch_save,
            "DCP + fsync": work.dcp_save,
        },
        "load": work.prepare_loads(Work(small, 10**6)),
    }


def main() -> None:
    """Measure and print."""
    told, watch = common.arguments(__doc__), Watch()
    versions = ", ".join(f"{one} {importlib.metadata.version(one)}" for one in ("torch", "safetensors", "blake3"))
    rounds = 3 if told.quick else 9
    with common.scratch() as folder:
        work, small = Work(folder, BYTES // 5 if told.quick else BYTES), folder / "small"
        small.mkdir()
        print(
            f"{common.machine()}\n{versions}; {work.num_bytes / 1e6:,.0f} MB, "
            f"{torch.get_num_threads()} threads of torch"
        )
        groups = contenders_of(work, small)
        taken: dict[str, dict[str, list[float]]] = {}
        for title, contenders in groups.items():
            for run in contenders.values():
                run()
            taken[title] = common.interleaved(contenders, rounds)
            in_ms = {name: [1000 * each for each in values] for name, values in taken[title].items()}
            common.show(title, in_ms, "ms")
        pairs = [work.slowed(3 if told.quick else 10) for _ in range(rounds)]
        alone, beside = ([1000 * each for each in side] for side in zip(*pairs, strict=True))
        common.show("the same steps", {"alone": alone, "a save behind": beside}, "ms")
    stall, whole, load = (list(taken[title].values()) for title in groups)
    common.conclude(
        {
            "stall_vs_memcpy": common.ratio(stall[1], stall[0]),
            "stall_vs_dcp": common.ratio(stall[2], stall[0]),
            "save_vs_safetensors": common.ratio(whole[1], whole[0]),
            "save_vs_torch": common.ratio(whole[2], whole[0]),
            "save_vs_dcp": common.ratio(whole[3], whole[0]),
            "load_vs_torch": common.ratio(load[1], load[0]),
            "load_vs_safetensors": common.ratio(load[2], load[0]),
            "own_memory_load_vs_torch": common.ratio(load[1], load[3]),
            "steps_beside_a_save": common.ratio(alone, beside),
        },
        watch.end(),
        quick=told.quick,
    )


if __name__ == "__main__":
    main()
