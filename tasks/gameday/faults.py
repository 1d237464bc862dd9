"""The faults that a game day injects, what docs/recovery.md promises about each, and which a pipeline can try."""

from __future__ import annotations

from dataclasses import dataclass

from data_contracts.errors import UsageError
from data_contracts.messages.gang import FaultName, PlannedFault
from data_contracts.pipeline_spec import PipelineSpec

# The training of a game day: its steps, and the steps between two checkpoints.
STEPS, EVERY_STEPS = 40, 10
# How long a fault waits for a checkpoint: less than a rank may stand still.
WAIT_S = 20.0
# How much later than `train.hang_timeout_s` a hung rank may be noticed.
HANG_MARGIN_S = 15.0


@dataclass(frozen=True)
class Fault:
    """A fault and its promise.

    Attributes:
        what: what is done.
        causes: what the end of the generation must be called; empty if the process that names causes is what is struck.
        within_s: in which time it must be noticed; None: the promise has no number.
        retry: the budget in `retry:` that it uses; "": none.
        checkpoints: how many checkpoints must be committed before it.
    """

    name: FaultName
    what: str
    causes: tuple[str, ...]
    within_s: float | None = None
    retry: str = ""
    checkpoints: int = 1

    def planned(self, hang_timeout_s: float) -> PlannedFault:
        """What the ranks of the training need to know."""
        wait_s = min(WAIT_S, hang_timeout_s / 3)
        return PlannedFault(name=self.name, every_steps=EVERY_STEPS, checkpoints=self.checkpoints, wait_s=wait_s)

    def limit_s(self, hang_timeout_s: float) -> float | None:
        """In which time it must be noticed with this `train.hang_timeout_s`."""
        return hang_timeout_s + HANG_MARGIN_S if self.name == "rank-hung" else self.within_s


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("rank-killed", "SIGKILL to a rank", ("node_lost",), 5.0, "node_lost"),
        Fault("rank-stopped", "SIGSTOP to a rank", ("hung",), 15.0, "hung"),
        Fault("rank-hung", "a rank takes no further step", ("hung",), None, "hung"),
        Fault("rank-asked-to-stop", "SIGTERM to a rank", ("preempted",), None, "preempted"),
        Fault("node-killed", "SIGKILL to the supervisor of a node", ("node_lost",), 15.0, "node_lost"),
        Fault("node-stopped", "SIGSTOP to the supervisor of a node", ("node_lost",), 15.0, "node_lost"),
        Fault("conductor-killed", "SIGKILL to the conductor, which is started again", ()),
        Fault(
            "checkpoint-damaged",
            "a bit of the newest checkpoint is flipped, and a rank killed",
            ("corrupt",),
            None,
            "node_lost",
            checkpoints=2,
        ),
    )
}
# What docs/recovery.md promises beyond these, and why a game day does not try it.
NOT_TRIED = {
    "link-cut": "needs root on both hosts, and cuts the link for everybody on them",
    "store-away": "the store may be shared; it cannot be refused to one training alone",
    "disk-full": "fills the disk for everybody who uses it",
    "server-away": "other flow runs need the Prefect server, too",
    "out-of-memory": "on a device, it takes the memory of whoever else is on it",
    "diverged": "needs a change to your module's loss",
}


def chosen(names: list[str] | None) -> list[Fault]:
    """The faults with these names, in the order of the catalogue; all without names. UsageError for another name."""
    if not names:
        return list(FAULTS.values())
    if unknown := [name for name in names if name not in FAULTS]:
        why = f": {NOT_TRIED[unknown[0]]}" if unknown[0] in NOT_TRIED else ""
        raise UsageError(
            f"--only {unknown[0]}: a game day does not inject this fault{why}.",
            remedy=f"It injects {', '.join(FAULTS)}.",
        )
    return [fault for name, fault in FAULTS.items() if name in names]


def why_not(fault: Fault, spec: PipelineSpec, *, in_folder: bool) -> str:
    """Why this pipeline cannot try a fault; "" if it can.

    Args:
        in_folder: whether the store is a folder.
    """
    if fault.retry and getattr(spec.retry, fault.retry) == 0:
        return f"retry.{fault.retry} is 0, so it ends the training"
    if fault.name == "checkpoint-damaged" and not in_folder:
        return "the store is on S3, where a sealed file cannot be changed in place"
    return ""


def keeps_weights(spec: PipelineSpec) -> bool:
    """Whether a training that was struck must have the weights of one that was not, to the bit."""
    train = spec.train
    return spec.data != "external" and train.least_nodes == train.nodes
