"""A callback that injects the planned fault of a game day, once, and records the first steps after it.

It signals its own process or the supervisor of its own node, and damages only a checkpoint of its own training.
"""

from __future__ import annotations

import os
import signal
import stat
import time
from pathlib import Path
from typing import Any, Literal

import lightning as L

from data_contracts.errors import CorruptError, TrainwrightError
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import FaultName, InjectedFault, Meeting, PlannedFault, StepAfter
from infra.gang.ledger import committed
from infra.records.nodes import this_node
from infra.store import Store, layout
from infra.store.layout import game_day_record
from training.fit.launch_context import Context

LOOK_S = 0.2
# The process that a fault strikes, and the signal. With any other fault, this rank takes no further step.
SIGNALS: dict[FaultName, tuple[Literal["rank", "supervisor"], int]] = {
    "rank-killed": ("rank", signal.SIGKILL),
    "rank-stopped": ("rank", signal.SIGSTOP),
    "rank-asked-to-stop": ("rank", signal.SIGTERM),
    "checkpoint-damaged": ("rank", signal.SIGKILL),
    "node-killed": ("supervisor", signal.SIGKILL),
    "node-stopped": ("supervisor", signal.SIGSTOP),
}


class FaultInjector(L.Callback):
    """Injects a fault in the middle between two checkpoints, and records the first steps after it."""

    def __init__(self, context: Context, store: Store, fault: PlannedFault) -> None:
        self._context, self._store, self._fault = context, store, fault
        self._injected = store.find_as(self._path("injected"), InjectedFault.from_json)
        self._resumed_from = context.resume.step if context.resume else 0
        self._waited_after = 0  # the number of the checkpoint after which it last waited for a commit
        self._unrecorded: list[Literal["first", "caught-up"]] = ["first", "caught-up"]

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Inject the fault if it is due; the last rank does."""
        if self._injected is not None or self._context.rank != self._context.world_size - 1:
            return
        number = trainer.global_step // self._fault.every_steps
        if number == self._waited_after or not is_due(trainer.global_step, self._fault):
            return
        self._waited_after = number
        if (checkpoint := self._committed()) is not None:
            self._inject(trainer.global_step, checkpoint)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Record the first step after the fault, and the first that had not been taken before it."""
        injected, step = self._injected, trainer.global_step
        if injected is None or self._context.rank or step == self._resumed_from:
            return
        while self._unrecorded and (self._unrecorded[0] == "first" or step > injected.step):
            after = StepAfter(generation=self._context.generation, step=step, resumed_from=self._resumed_from)
            self._store.create_once(self._path(self._unrecorded.pop(0)), after.to_json())

    def _path(self, what: Literal["injected", "first", "caught-up"]) -> str:
        return game_day_record(self._context.training, what)

    def _committed(self) -> Checkpoint | None:
        """The newest committed checkpoint, once there are enough of them; None if that takes too long."""
        until = time.monotonic() + self._fault.wait_s
        while True:
            known = committed(self._store, self._context.training)[0]
            if len(known) >= self._fault.checkpoints:
                return known[-1]
            if time.monotonic() > until:
                return None
            time.sleep(LOOK_S)

    def _inject(self, step: int, checkpoint: Checkpoint) -> None:
        """Record the fault, then inject it. It is recorded once, so that it is injected once."""
        context = self._context
        meeting = self._store.read_as(layout.rollcall(context.training, context.generation), Meeting.from_json)
        node = meeting.nodes[int(os.environ["GROUP_RANK"])]
        strikes_node = SIGNALS.get(self._fault.name, ("rank",))[0] == "supervisor"
        supervisor = checked_supervisor(node.pid) if strikes_node else node.pid
        injected = InjectedFault(
            name=self._fault.name,
            generation=context.generation,
            rank=context.rank,
            node=node.node,
            host=this_node(),
            step=step,
            checkpoint=checkpoint.ref.uri,
        )
        if self._store.create_once(self._path("injected"), injected.to_json()):
            self._injected = injected
            if self._fault.name == "checkpoint-damaged":
                damage(self._store, checkpoint)
            inject(self._fault.name, supervisor)


def is_due(step: int, fault: PlannedFault) -> bool:
    """Whether a fault may come after `step`: half-way to the next checkpoint or later, after enough checkpoints.

    With several optimizers, a batch counts as several steps, so there may be no step exactly half-way.
    """
    after, middle = divmod(step, fault.every_steps)
    return after >= fault.checkpoints and middle >= fault.every_steps // 2


def inject(name: FaultName, supervisor: int) -> None:
    """Inject a fault; unless it is a request to stop, this rank takes no further step and waits to be ended.

    Args:
        supervisor: process id of this node's supervisor.
    """
    if name in SIGNALS:
        target, number = SIGNALS[name]
        os.kill(os.getpid() if target == "rank" else supervisor, number)
    while name != "rank-asked-to-stop":
        time.sleep(3600)


def checked_supervisor(pid: int) -> int:
    """The process id of this node's supervisor; TrainwrightError if it did not start this rank's torchrun."""
    import psutil

    # The parent is torchrun. Above the supervisor are processes of others, such as a worker.
    if [process.pid for process in psutil.Process().parents()[1:2]] != [pid]:
        raise TrainwrightError(f"game day: process {pid} is not the supervisor of the rank in process {os.getpid()}.")
    return pid


def damage(store: Store, checkpoint: Checkpoint) -> None:
    """Flip one bit in the middle of a checkpoint's largest file, in a store that is a folder."""
    largest = max(store.manifest(checkpoint.ref).files, key=lambda file: file.bytes)
    path = Path(store.uri) / checkpoint.ref.uri / largest.path
    if not stat.S_ISREG(path.lstat().st_mode):
        raise CorruptError(f"{path} is a link, which a store never holds.", details={"file": str(path)})
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(largest.bytes // 2)
        byte = file.read(1)[0]
        file.seek(largest.bytes // 2)
        file.write(bytes([byte ^ 1]))
