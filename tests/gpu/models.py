"""What the kit trains: as ours, in the project that a gang's ranks unpack, and in the bare loop of `loops.py`."""

from __future__ import annotations

import bisect
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modules
import torch
from torch import Tensor, nn
from torch.nn import functional as F

# How the profiler names what makes the host wait for the device; on a CPU, which never waits, a value that is read.
WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy")
READS = ("aten::_local_scalar_dense",)
# The marker of a step in the profiler's trace.
STEP = "kit: step"


class Steered(modules.Timed):
    """Trains in turns with others, counts, or breaks, as `steering` says; notes all in `out`, a folder.

    Args of `steering`:
        turns: (steps before the first turn, steps of a turn). A turn begins once `go-<number>` is in `out`, and its
            seconds a step are in `turn-<number>`. The training ends at a turn once `end` is there.
        compiled: `whole` or `blocks`, by `backend`.
        kill_at: the step before which the process is killed, once.
        fault: (`oom`, `assert` or `hang`, step).
        profile: (first step, last step) between which the host's waits for the device are counted.
    """

    def steer(self, out: str, **steering: Any) -> None:
        self.out, self.steering = Path(out), steering
        self.notes: dict[str, Any] = {}
        self.step, self.turn, self.waited_s = 0, -1, 0.0
        self.first_loss: Tensor | None = None
        self.profiler: torch.profiler.profile | None = None
        self.began = 0.0

    def setup(self, stage: str) -> None:
        what, backend = self.steering.get("compiled"), self.steering.get("backend", "inductor")
        for part in {"whole": [self], "blocks": list(getattr(self, "blocks", []))}.get(what, []):
            part.compile(backend=backend)

    def tick(self) -> None:
        """A step begins."""
        if not self.step:
            self.notes["resumed_at"] = self._trainer.global_step if self._trainer is not None else 0
            self.notes["started"] = time.perf_counter()
        if "turns" in self.steering:
            self.take_turn(*self.steering["turns"])
        if "profile" in self.steering:
            self.count_waits(*self.steering["profile"])
        self.step += 1

    def take_turn(self, warm: int, steps: int) -> None:
        if self.step < warm or (self.step - warm) % steps:
            return
        wait_for_device()
        now = time.perf_counter()
        if self.turn >= 0:
            put(self.out / f"turn-{self.turn}", str((now - self.began) / steps))
        self.turn += 1
        self.note(waited=True)
        put(self.out / f"ready-{self.turn}", "")
        while not (self.out / f"go-{self.turn}").exists() and not self.ended:
            self.ended = (self.out / "end").exists()
            time.sleep(0.002)
        self.began = time.perf_counter()
        self.waited_s += self.began - now

    def count_waits(self, first: int, last: int) -> None:
        names = WAITS if torch.cuda.is_available() else READS
        if self.step == first:
            self.profiler = torch.profiler.profile()
            self.profiler.start()
        if self.profiler is not None and self.step < last:
            with torch.profiler.record_function(STEP):
                pass
        elif self.profiler is not None:
            self.profiler.stop()
            events = self.profiler.events()
            begins = sorted(each.time_range.start for each in events if each.name == STEP)
            waits = [each.time_range.start for each in events if each.name in names]
            steps = {bisect.bisect_right(begins, at) for at in waits}
            self.notes |= {"waits": len(waits), "steps_with_waits": len(steps)}
            self.profiler = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.trainer.global_step == self.steering.get("kill_at"):
            kill_once(self.out / "killed")
        what, at = self.steering.get("fault", ("", -1))
        if self.trainer.global_step >= at >= 0:
            self.notes["fault_at"] = time.monotonic()
            self.note()
            FAULTS[what](self.device)
        loss = super().training_step(batch, batch_idx)
        if self.step == 1:
            self.first_loss = loss.detach()  # to read it here would wait for the device
        self.trainer.should_stop |= self.ended
        return loss

    def write(self) -> None:
        wait_for_device()
        self.notes["total_s"] = time.perf_counter() - self.notes["started"]
        self.notes["waited_s"] = self.waited_s
        self.notes["peak_bytes"] = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        self.note(waited=True)

    def note(self, *, waited: bool = False) -> None:
        if waited and self.first_loss is not None:
            self.notes["first_loss"] = float(self.first_loss)
        put(self.out / "notes.json", json.dumps(self.notes))


class GPT(Steered, modules.GPT):
    """modules.GPT, steered; `size` holds its arguments."""

    def __init__(self, steering: dict[str, Any], size: dict[str, int]) -> None:
        super().__init__((-1, -1), **size)
        self.steer(**steering)


class Images(Steered):
    """Convolutions over {"image": [B, 3 x side x side] uint8, "label": [B]}, with SGD."""

    def __init__(self, steering: dict[str, Any], size: dict[str, int]) -> None:
        super().__init__((-1, -1))
        self.side, self.layers = size["side"], self.make_layers(**size)
        self.head = nn.Linear(size["width"], 10)
        self.steer(**steering)

    def make_layers(self, side: int, width: int, depth: int) -> nn.Sequential:
        layers = [nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU()) for _ in range(depth)]
        return nn.Sequential(nn.Conv2d(3, width, 7, stride=4), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        pixels = batch["image"].view(-1, 3, self.side, self.side).to(memory_format=torch.channels_last)
        return F.cross_entropy(self.head(self.layers(pixels.float() / 255)), batch["label"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


class MLP(Images):
    """A perceptron of `depth` layers over the same."""

    def make_layers(self, side: int, width: int, depth: int) -> nn.Sequential:
        layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)]
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * side**2, width), *layers)


def wait_for_device() -> None:
    """Wait until the device has done everything."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def put(path: Path, text: str) -> None:
    """Write a small file whole or not at all."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text)
    new.replace(path)


def kill_once(marker: Path) -> None:
    """SIGKILL for this process, unless there was one."""
    if not marker.exists():
        wait_for_device()
        time.sleep(2)  # a checkpoint that is being saved is sealed and committed meanwhile
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def run_out_of_memory(device: torch.device) -> None:
    """Ask for more than the device has left."""
    if device.type == "cpu":
        raise torch.OutOfMemoryError("as if a device had no memory left")
    torch.empty(torch.cuda.mem_get_info()[0] + 2**30, dtype=torch.uint8, device=device)


def fail_an_assertion(device: torch.device) -> None:
    """Look up an index that is out of bounds; a device notices on its own."""
    torch.zeros(4, device=device)[torch.full((1,), 7, device=device)]


def never_end(device: torch.device) -> None:
    """Start a kernel that does not end; on a CPU, do not end."""
    if device.type == "cpu":
        time.sleep(3600)
    torch.cuda._sleep(2**62)


FAULTS: dict[str, Callable[[torch.device], None]] = {
    "oom": run_out_of_memory, "assert": fail_an_assertion, "hang": never_end,
}  # fmt: skip
