"""The one change most worth trying for what bounds a step; a pure function of the settings."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from data_contracts.messages.commands import StepProfile
from tasks.profile.verdict import Bound
from tasks.stages.train import REMEDIES

_FULL = ("", "32", "32-true", "None")
_MOST_WORKERS = 8
# The optimizers of torch that take `fused`, on a CPU as well.
_FUSABLE = ("Adam", "AdamW", "SGD", "Adagrad")
_OF_TORCH = ("", "torch.optim", *(f"torch.optim.{name.lower()}" for name in _FUSABLE))


@dataclass(frozen=True)
class Change:
    """A change of a training's settings.

    Attributes:
        what: the change in words, as what one does.
        effect: what it does to the model that is trained.
        train: the settings with the change.
        batches_ready, compiled: as a `ProfileRequest` has them.
        note: what the measurement stands for, if it is not the change itself.
    """

    what: str
    effect: str
    train: dict[str, Any] = field(default_factory=dict)
    batches_ready: bool = False
    compiled: bool = False
    note: str = ""


_SAME = "The model stays the same."
_SAME_ORDER = "The model stays the same; the training gets no new key."
_ROUNDED = "The model stays the same but for rounding."


def change_for(bound: Bound, profile: StepProfile, train: Mapping[str, Any], cores: int) -> Change | None:
    """The change for what bounds a step; None if none is known.

    Args:
        train: the settings that were profiled, with the Lightning config inlined.
        cores: processor cores of this machine.
    """
    if bound == "data":
        return _workers(train, cores) or _ready(profile, train)
    if bound == "communication":
        return _larger_batch(profile, train)
    if bound == "checkpoint":
        return _rarer_checkpoints(profile, train)
    if bound == "callbacks":
        return _less_logging(train)
    if bound in ("compute", "memory", "calls", "unknown") and (change := _fused(profile, train)) is not None:
        return change
    if bound == "compute":
        return _half_precision(train) or _compiled(train)
    if bound in ("memory", "calls", "unknown"):
        return _larger_micro_batch(profile, train) or _compiled(train)
    return None


def _ready(profile: StepProfile, train: Mapping[str, Any]) -> Change:
    remedy = REMEDIES.get(profile.data_cause, "preparing batches takes longest.")
    what = f"Make batches cheaper: {remedy}"
    note = "Measured with batches that were prepared before the steps: no change of the loader gives more than that."
    return Change(what, _SAME, dict(train), batches_ready=True, note=note)


def _workers(train: Mapping[str, Any], cores: int) -> Change | None:
    """More workers for the user's own data module, where it takes their number."""
    changed = copy.deepcopy(dict(train))
    arguments = (changed["lightning"].get("data") or {}).get("init_args") or {}
    now = arguments.get("num_workers")
    most = min(cores, _MOST_WORKERS)
    if type(now) is not int or now >= most:
        return None
    arguments["num_workers"] = most
    return Change(f"Set data.init_args.num_workers of train.lightning to {most} (it is {now}).", _SAME, changed)


def _larger_batch(profile: StepProfile, train: Mapping[str, Any]) -> Change:
    rows = train["global_batch_size"]
    micro = rows // profile.world_size // profile.accumulate
    changed = {**train, "global_batch_size": 2 * rows, "micro_batch_size": micro}
    what = f"Exchange gradients half as often: train.global_batch_size {2 * rows}, train.micro_batch_size {micro}."
    return Change(what, "Another training: its optimizer takes half as many steps, with twice the rows.", changed)


def _rarer_checkpoints(profile: StepProfile, train: Mapping[str, Any]) -> Change:
    now = dict(train.get("checkpoint") or {})
    every_s, every_steps = now.get("every_s"), now.get("every_steps")
    if isinstance(every_s, int | float):
        now["every_s"], said = 4 * every_s, f"train.checkpoint.every_s {4 * every_s:g}"
        now["every_steps"] = None
    else:
        steps = 4 * (every_steps or profile.steps_per_epoch or 1)
        now["every_steps"], said = steps, f"train.checkpoint.every_steps {steps}"
    effect = "The model stays the same; after a failure, up to four times as many steps are done again."
    return Change(f"Save a quarter as often: {said}.", effect, {**train, "checkpoint": now})


def _less_logging(train: Mapping[str, Any]) -> Change:
    steps = 10 * int((train["lightning"].get("trainer") or {}).get("log_every_n_steps") or 10)
    what = f"Log less often: trainer.log_every_n_steps {steps} in train.lightning."
    return Change(what, _SAME, _with_trainer(train, log_every_n_steps=steps))


def _half_precision(train: Mapping[str, Any]) -> Change | None:
    precision = str((train["lightning"].get("trainer") or {}).get("precision") or "")
    if precision not in _FULL:
        return None
    what = "Compute in half precision: trainer.precision bf16-mixed in train.lightning."
    return Change(what, "Another training: compare its metrics as well.", _with_trainer(train, precision="bf16-mixed"))


def _fused(profile: StepProfile, train: Mapping[str, Any]) -> Change | None:
    """The optimizer as one operation, if it takes most of the module's work and the Lightning config names it."""
    work = [profile.phases.get(part, 0.0) for part in ("optimizer", "forward", "backward")]
    optimizer = train["lightning"].get("optimizer")
    trainer = train["lightning"].get("trainer") or {}
    # Lightning clips no gradients of a fused optimizer in mixed precision (`MixedPrecision.clip_gradients`).
    clips = trainer.get("gradient_clip_val") and str(trainer.get("precision") or "") not in _FULL
    if 2 * work[0] <= sum(work) or clips or not isinstance(optimizer, Mapping):
        return None
    arguments = optimizer.get("init_args") or {}
    module, _, name = str(optimizer.get("class_path")).rpartition(".")
    if name not in _FUSABLE or module not in _OF_TORCH or {"fused", "foreach", "differentiable"} & set(arguments):
        return None
    changed = {**optimizer, "init_args": {**arguments, "fused": True}}
    what = f"Take the optimizer's step at once: init_args.fused true for {name} in train.lightning."
    return Change(what, _ROUNDED, {**train, "lightning": {**train["lightning"], "optimizer": changed}})


def _larger_micro_batch(profile: StepProfile, train: Mapping[str, Any]) -> Change | None:
    if profile.accumulate < 2:
        return None
    rows = train["global_batch_size"] // profile.world_size
    what = f"Take the whole batch at once: train.micro_batch_size {rows}, which needs more memory."
    return Change(what, _SAME_ORDER, {**train, "micro_batch_size": rows})


def _compiled(train: Mapping[str, Any]) -> Change:
    what = "Compile the module's parts: call `.compile()` on each submodule in the module's configure_model."
    return Change(what, _ROUNDED, dict(train), compiled=True)


def _with_trainer(train: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    lightning = train["lightning"]
    return {**train, "lightning": {**lightning, "trainer": {**(lightning.get("trainer") or {}), **settings}}}
