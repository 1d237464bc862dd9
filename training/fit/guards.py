"""What keeps a training from going wrong unseen: before step 1, between two steps, and when a checkpoint is saved.

Before step 1, all state must be such that it can be saved and read again. Between steps the ranks agree, so that all of
them save, stop or fail at the same step. A training that diverges is detected from the loss of every step and the
weights of every save, and the samples that may have caused it are named; on a GPU, where reading a value waits for its
step, the check runs only every so many steps and at each checkpoint. Replicas start equal and apply the same gradients,
so a sum over the bits of their parameters is the same on all; if the sums differ, the memory or a device of one replica
is faulty, and its gradients spoil all the others.

A checkpoint may hold other weights than those that the metric of `train.select` was measured on: later steps change
them, and so do callbacks that average weights, at the end of a training or for each checkpoint. The value of other
weights says nothing about a checkpoint.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
from collections import Counter
from collections.abc import Collection, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy

from data_contracts.errors import CorruptError, Diverged, TrainwrightError, UsageError
from data_contracts.handoffs import Checkpoint
from data_contracts.pipeline_spec import TrainSpec
from data_contracts.pipeline_spec.train import SelectSpec
from training.checkpoint.files import UnsupportedState
from training.checkpoint.saver import Capture, capture
from training.fit.launch_context import Context
from training.fit.reference_loss import evaluating, saved_weights
from training.loader import Split
from training.loader.loaders import loader_of
from training.user.imports import user_code
from training.user.ready import after_configuring, call_forward, entry_names, match_forward

# The ranks agree on the greatest flag. The findings about the loss are greater than these.
CONTINUE, DUE, STOP, NOT_SAVED, WRONG = range(5)
log = logging.getLogger(__name__)
# On a GPU, steps between two looks at the loss.
LOOK_EVERY = 16
# Steps in the mean before a rise counts, and the weight of each new step in the mean.
SETTLED_STEPS = 32
SHARE = 1 / 32
# Rows that the error itself names; the rank's log has all of them.
MOST_NAMED = 64
# Steps between two comparisons of the replicas.
EVERY = 100
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# The ranks agree on the greatest finding. A loss that is not finite narrows the batch down further than a weight does.
FINE, ROSE, BAD_WEIGHT, BAD_LOSS = range(4)
WORDS = {
    ROSE: "The loss rose above train.spike_factor times its mean over the steps before",
    BAD_WEIGHT: "A weight is not a finite number",
    BAD_LOSS: "The loss is not a finite number",
}


class Agreement:
    """One rank's part in the agreement.

    Attributes:
        stop_signalled: whether this rank got a SIGTERM.
    """

    def __init__(self, timeout_s: float) -> None:
        self.stop_signalled = False
        self._timeout = timedelta(seconds=timeout_s)
        self._group: dist.ProcessGroup | None = None

    def listen(self) -> None:
        """Take SIGTERM as a request to stop. The ranks share the flag at the next step, whichever of them got it."""
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def meet(self, world_size: int) -> None:
        """Create the ranks' group. Collective; call it once the ranks have found each other."""
        if world_size > 1:
            # gloo on a GPU too: reading a flag from the device would wait for the step.
            self._group = dist.new_group(backend="gloo", timeout=self._timeout)

    def most_urgent(self, flag: int) -> int:
        """The greatest flag of any rank. Collective."""
        return self._reduced(flag, dist.ReduceOp.MAX)

    def total(self, number: int) -> int:
        """The sum over all ranks. Collective."""
        return self._reduced(number, dist.ReduceOp.SUM)

    def _reduced(self, number: int, operation: dist.ReduceOp.RedOpType) -> int:
        if self._group is None:
            return number
        shared = torch.tensor(number)
        dist.all_reduce(shared, operation, group=self._group)
        return int(shared)

    def _on_sigterm(self, *_: Any) -> None:
        self.stop_signalled = True


def try_capture(state: Mapping[str, object], rank_state: Mapping[str, object], rank: int) -> Capture:
    """What a checkpoint would hold, without copying it; UsageError for a value that no checkpoint can hold.

    Args:
        state: Lightning's checkpoint dictionary; rank_state: what belongs to this rank alone.
    """
    try:
        return capture(state, rank_state, rank, dry=True)
    except UnsupportedState as error:
        raise UsageError(
            f"{error.path} is a {error.kind}, which a checkpoint cannot hold: it takes tensors and plain values.",
            remedy="Keep it out of the saved state, or make it tensors, numbers, texts, lists or dictionaries.",
        ) from error
    except RecursionError as error:
        raise UsageError(
            "The saved state of the module, its callbacks or its data module contains itself, or is too deep.",
            remedy="Keep it out of the saved state.",
        ) from error


def refuse_doubtful(module: L.LightningModule, context: Context) -> None:
    """UsageError if evaluate could not tell which entries of a batch the module's `forward` gets."""
    train, dataset = context.train, context.dataset
    called = not is_overridden("predict_step", module, L.LightningModule)
    # What a transform makes of a batch is not known here.
    if context.targets and called and train.transform is None and dataset is not None:
        batch = dataset.columns if train.batch is None else train.batch
        match_forward(module.forward, entry_names(batch), set(context.targets), keyed=isinstance(batch, dict))


def shape_lazy(
    module: L.LightningModule, split: Split | None, train: TrainSpec, project: Path, targets: Collection[str]
) -> None:
    """Make the module's `configure_model` give lazy parameters their shapes after the user's own hook, by a forward
    pass over two rows: before weights, ranks and optimizers need them.

    Args:
        split: has the rows; None where the user's own data module has them: then lazy parameters are refused.
        targets: entries of a batch that metrics take for the truth.
    """

    def shape(configured: L.LightningModule) -> None:
        if split is not None and _lazy(configured):
            what = "the forward pass that gives lazy parameters their shapes"
            with evaluating(configured), user_code(what, project.resolve()):
                # Every strategy draws the same values, but not those that the constructor drew.
                torch.manual_seed(train.seed + 1)
                if is_overridden("predict_step", configured, L.LightningModule):
                    configured.predict_step(split.take(slice(0, 2)), 0)
                else:
                    call_forward(configured, split.take(slice(0, 2)), set(targets), train.batch)
        if left := _lazy(configured):
            raise UsageError(
                f"train.lightning: {left[0]} is a lazy parameter that has no shape before the first step.",
                remedy="Give it its shape in configure_model, by a forward pass over zeros.",
            )

    after_configuring(module, shape)


def _lazy(module: L.LightningModule) -> list[str]:
    return [name for name, value in [*module.named_parameters(), *module.named_buffers()] if is_lazy(value)]


def warn_of_batch_size(trainer: L.Trainer, context: Context) -> None:
    """Warn if the user's own loader has another batch size than the spec plans with."""
    size = getattr(trainer.train_dataloader, "batch_size", None)
    wanted = context.train.global_batch_size // context.world_size
    if isinstance(size, int) and size != wanted and trainer.is_global_zero:
        log.warning(
            "The data module's batch size is %d, but train.global_batch_size %d on %d ranks means %d; "
            "steps and samples are counted as the spec has them.",
            *(size, context.train.global_batch_size, context.world_size, wanted),
        )


class LossWatch:
    """One rank's view of its training.

    Args:
        global_batch: samples of a step.
        spike_factor: a loss above this multiple of its running mean is a rise; None: a rise is never reported.
    """

    def __init__(self, global_batch: int, spike_factor: float | None) -> None:
        self._batch, self._factor = global_batch, spike_factor
        self._finite: Tensor | bool | None = None
        self._rose: Tensor | None = None
        self._mean: Tensor | None = None
        self._steps = 0
        # Samples consumed when the losses, and when the weights, were last known to be fine.
        self._loss_at = self._weight_at = 0

    def take(self, outputs: Any) -> None:
        """Record the loss that a step returned, without waiting for it."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if not isinstance(loss, Tensor):
            return
        loss = loss.detach()
        # A number that is already on the host is cheaper to read than to put off.
        there = loss.device.type == "cpu" and loss.numel() == 1
        fine = math.isfinite(loss.item()) if there else torch.isfinite(loss).all()
        self._finite = fine if self._finite is None else self._finite & fine
        if self._factor is not None:
            self._follow(loss.float().mean())

    def look(self, module: torch.nn.Module, *, weights: bool) -> int:
        """The finding, or FINE; waits for the steps so far."""
        if self._finite is not None and not bool(self._finite):
            return BAD_LOSS
        if weights and not all_finite(module):
            return BAD_WEIGHT
        return ROSE if self._rose is not None and bool(self._rose) else FINE

    def fine(self, samples: int, *, weights: bool) -> None:
        """Record that no rank found anything wrong after `samples` samples."""
        self._loss_at = samples
        if weights:
            self._weight_at = samples

    def since(self, finding: int, samples: int) -> int:
        """The number of samples after which the cause must lie."""
        if finding == BAD_LOSS:
            # The cause is the batch itself or the weights that the previous batch left; never what a checkpoint holds.
            return max(self._weight_at, self._loss_at - self._batch)
        if finding == BAD_WEIGHT and self._finite is not None:
            # The last step's loss was computed with the weights before it, and was finite.
            return max(self._weight_at, samples - self._batch)
        return self._weight_at if finding == BAD_WEIGHT else self._loss_at

    def _follow(self, loss: Tensor) -> None:
        mean = loss if self._mean is None else self._mean
        if self._steps >= SETTLED_STEPS and self._factor is not None:
            rose = loss > self._factor * mean.abs()
            self._rose = rose if self._rose is None else self._rose | rose
        self._mean = mean + (loss - mean) * SHARE
        self._steps += 1


def diverged(trainer: L.Trainer, finding: int, since: int, samples: int) -> Diverged:
    """The error for a finding. It names the samples that may have caused it: those after `since`, up to `samples`."""
    step = trainer.global_step
    details: dict[str, object] = {"step": step, "samples": [since, samples]}
    where = f"at step {step} (epoch {trainer.current_epoch}), after samples {since:,} to {samples:,}"
    sentence = f"{WORDS[finding]} {where}."
    loader = loader_of(trainer)
    if loader is None:
        return Diverged(sentence, details=details)
    rows = loader.rows(since, samples)
    log.warning("the samples %d to %d, which may have caused it, are rows %s", since, samples, rows.tolist())
    details |= {"rows": rows[:MOST_NAMED].tolist()}
    loader.close()
    with contextlib.suppress(TrainwrightError):  # such as a store that is unavailable: the loss is still the cause
        if missing := loader.split.without_numbers(rows):
            named = ", ".join(f"{name} in {count}" for name, count in missing.items())
            return Diverged(
                f"{sentence} Of their {len(rows):,} rows some hold no number (missing, NaN or infinite): {named}.",
                remedy="Fill them or drop the rows in shards.transform, or fill them in train.transform.",
                details=details,
            )
    return Diverged(sentence, details=details)


def all_finite(module: torch.nn.Module) -> bool:
    """Whether all parameters are finite. Buffers are not checked: some hold infinities on purpose, such as a causal
    mask.
    """
    # A sum is read at the speed of memory. If it is finite, all values are; if it is not, it may only have overflowed.
    local = map(_local, module.parameters())
    return all(bool(part.sum().isfinite()) or bool(part.isfinite().all()) for part in local)


def check_resumed(trainer: L.Trainer, checkpoint: Checkpoint) -> None:
    """Raise CorruptError if the state that this rank restored is not finite, or has another number of steps.

    Infinities in an optimizer's state are allowed: a square may overflow while the weights stay finite.
    """
    about = {"checkpoint": checkpoint.ref.uri}
    if trainer.global_step != checkpoint.step:
        raise CorruptError(
            f"The state in {checkpoint.ref.uri} counts {trainer.global_step:,} steps, not {checkpoint.step:,}.",
            details=about,
        )
    what = "" if all_finite(trainer.lightning_module) else "weights"
    for optimizer in trainer.optimizers:
        state = [value for one in optimizer.state.values() for value in one.values() if isinstance(value, Tensor)]
        # NaN in one value makes the sum NaN; so do infinities of both signs.
        if any(bool(part.sum().isnan()) and bool(part.isnan().any()) for part in map(_local, state)):
            what = what or "an optimizer's state"
        if not all(math.isfinite(group.get("lr", 0)) for group in optimizer.param_groups):
            what = what or "a learning rate"
    if what:
        raise CorruptError(
            f"The checkpoint {checkpoint.ref.uri} holds numbers that are not finite, in {what}.",
            details=about,
        )


def _local(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def checksum(module: torch.nn.Module, others: Mapping[str, torch.Tensor] | None = None) -> torch.Tensor:
    """A sum over the bits of all parameters, or of this rank's part of sharded ones. Replicas have equal sums.

    One int64 on their device; it wraps around.

    Args:
        others: tensors that are counted in the place of the parameters of these names.
    """
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    named = [(name, parameter) for name, parameter in module.named_parameters() if name not in ignored]
    values = [(others or {}).get(name, p).detach().to(p.device) for name, p in named]
    parts = [(value.to_local() if isinstance(value, DTensor) else value).reshape(-1) for value in values]
    sums = [part.view(_BITS[part.element_size()]).sum(dtype=torch.int64) for part in parts]
    weighed = [at * each for at, each in enumerate(sums, 1)]
    return torch.stack(weighed).sum() if weighed else torch.zeros((), dtype=torch.int64)


def compare(module: torch.nn.Module, device: torch.device, world_size: int, step: int, *, shards: int = 1) -> None:
    """Raise CorruptError on all ranks, naming the ranks whose parameters differ from the majority's. Collective.

    Args:
        shards: ranks over which a replica is sharded: rank r holds what r + shards holds, too.
    """
    mine = checksum(module).to(device).reshape(1)
    everyone = torch.empty(world_size, dtype=torch.int64, device=device)
    dist.all_gather_into_tensor(everyone, mine)
    sums = everyone.tolist()
    odd = sorted(first + shards * at for first in range(shards) for at in odd_ones(sums[first::shards]))
    if odd:
        names = ", ".join(map(str, odd))
        raise CorruptError(
            f"At step {step} the parameters of rank {names} are no longer those of the other ranks."
            if len(odd) < world_size // shards
            else f"At step {step} ranks {names} no longer hold the same parameters.",
            remedy="Resume: every checkpoint was made while they were equal; have that machine's memory tested.",
            details={"step": step, "ranks": odd},
        )


def odd_ones(sums: list[int]) -> list[int]:
    """The ranks whose sum differs from the majority's; all if there is no majority; none if all sums are equal."""
    if len(set(sums)) == 1:
        return []
    [(most, count)] = Counter(sums).most_common(1)
    return [rank for rank, each in enumerate(sums) if 2 * count <= len(sums) or each != most]


class ValidatedWeights(L.Callback):
    """Notes which weights were validated last; comes after the user's callbacks, which may exchange weights for that.

    Attributes:
        step: after which step a validation last measured the metric; None if it comes from elsewhere.
    """

    def __init__(self, select: SelectSpec | None, agreement: Agreement) -> None:
        self.step: int | None = None
        self._metric, self._agreement = None if select is None else select.metric, agreement
        self._before: Any = None
        self._sum: int | None = None
        self._warned = False

    def state_dict(self) -> dict[str, int]:
        """The step, for a resumed training; empty where no validation measures the metric."""
        return {} if self.step is None else {"step": self.step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the step. The weights are noted again at the next validation."""
        self.step = state_dict["step"]

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note the metric's value so far."""
        self._before = trainer.callback_metrics.get(self._metric) if self._metric else None

    def on_validation_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        """Note the weights, at the first batch."""
        if self._metric and args[2] == 0:
            self._sum = int(checksum(pl_module))

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note whether the metric was measured. Collective."""
        if self._metric is None or trainer.sanity_checking:
            return
        # Lightning makes a new tensor for each value.
        if self._agreement.total(int(trainer.callback_metrics.get(self._metric) is not self._before)):
            self.step = trainer.global_step

    def are_in(self, state_dict: Mapping[str, Any], trainer: L.Trainer) -> bool:
        """Whether a checkpoint with this state holds the weights on which the metric was measured; also true where no
        validation measures it. Collective.
        """
        if self.step is None:
            return True
        module = trainer.lightning_module
        same = self._sum == int(checksum(module, saved_weights(module, state_dict)))
        if self._agreement.total(int(not same)) == 0:
            return True
        if self.step == trainer.global_step and not self._warned and trainer.is_global_zero:
            self._warned = True
            log.warning(
                "train.select does not choose the checkpoint of step %d: %s was measured before a hook changed the "
                "weights that it holds.",
                *(self.step, self._metric),
            )
        return False
