"""What a training begins with: the state that it resumes with, or the weights of a checkpoint or of other files.

The state that a resumed training needs besides Lightning's is generators, running means, positions and logged values.
It is added to each checkpoint, read before Lightning restores its own part, and restored before the first step. What a
rank has accumulated within an epoch (means of logged values and the module's torchmetrics) is part of it: neither
Lightning nor a state dictionary keeps these. Without them, the epoch in which a run resumes would report the mean over
its remaining steps only, and a plateau schedule would act on it.

At a warm start the module's first weights are loaded before step 1, from a checkpoint or from external safetensors:
whole on every rank, after the user's `configure_model` and before anything is sharded, wrapped or optimized, so that
all strategies begin alike. A resumed training loads its own checkpoint instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor, nn
from torchmetrics import Metric

from data_contracts.errors import CorruptError, TrainwrightError, UsageError
from infra.records.handoffs import plain_name
from training.checkpoint.files import (
    DTYPES,
    INDEX,
    WEIGHTS,
    Entry,
    Index,
    TensorFile,
    TensorReader,
    TensorSlice,
    read_index,
)
from training.checkpoint.saver import capture_rng, read_history, read_rank_state, restore_rng, seed_rank
from training.fit.guards import all_finite, check_resumed
from training.fit.launch_context import Context
from training.fit.measuring import History
from training.lightning_adapter import (
    adapt_checkpoint,
    batches_begun,
    capture_logged,
    dump_checkpoint,
    loader_states,
    replay_batches,
    restore_callback_metrics,
    restore_states,
    resume_logged,
    states_of,
    update_count,
)
from training.loader.loaders import loader_of
from training.user.ready import after_configuring

KEY = "trainwright"
_NAMED = 3
# The result of get_extra_state belongs to one training, and need not be a tensor.
_EXTRA = "_extra_state"
_DTYPES = {name: str(dtype).removeprefix("torch.") for dtype, name in DTYPES.items()}


class Resume:
    """One rank's state, saved and restored.

    Args:
        own_loader: whether the batches are the user's own; a rank's loader may then differ in position from rank 0's.
        folder: files of the checkpoint that is resumed from; None when a training begins.
        samples: after how many samples that checkpoint was made, as it was sealed; 0 when a training begins.

    Attributes:
        metrics: the newest value of each metric that was logged.
    """

    def __init__(self, context: Context, history: History, own_loader: bool, folder: Path | None, samples: int) -> None:
        self.metrics: dict[str, Tensor] = {}
        self._samples = samples
        self._context, self._history, self._own_loader, self._folder = context, history, own_loader, folder
        self._rank_state: dict[str, Any] | None = None
        self._frozen: list[str] | None = None

    def rank_state(self, trainer: L.Trainer) -> dict[str, object]:
        """The state that belongs to this rank alone."""
        state: dict[str, object] = {"rng": capture_rng(), "running": capture_running(trainer)}
        loaders = loader_states(trainer) if self._own_loader else None
        return state if loaders is None else {**state, "loaders": loaders}

    def add_to(self, checkpoint: dict[str, Any], trainer: L.Trainer) -> None:
        """Add the state that Lightning does not save to its checkpoint dictionary."""
        self.metrics |= {name: value for name, value in trainer.callback_metrics.items() if isinstance(value, Tensor)}
        checkpoint[KEY] = {
            "accumulate": trainer.accumulate_grad_batches,
            "metrics": dict(sorted(self.metrics.items())),
            "frozen": [name for name, parameter in _parameters(trainer) if not parameter.requires_grad],
        }

    def read(self, checkpoint: dict[str, Any], trainer: L.Trainer) -> None:
        """Read the added state, and adapt what Lightning restores: another number of ranks has other micro-batches."""
        context, saved = self._context, checkpoint[KEY]
        self.metrics = dict(saved["metrics"])
        self._frozen = saved.get("frozen")  # None: an earlier version made it
        restore_callback_metrics(trainer, self.metrics)
        if trainer.is_global_zero and self._folder is not None:
            self._history.records[:] = read_history(self._folder)
        same_ranks = context.resume is not None and context.resume.world_size == context.world_size
        if self._folder is not None and same_ranks:
            self._rank_state = read_rank_state(self._folder, context.rank)
        loaders = (self._rank_state or {}).get("loaders")
        adapt_checkpoint(checkpoint, loaders, saved["accumulate"], trainer.accumulate_grad_batches)

    def begin(self, trainer: L.Trainer, fetcher: Any, batches_done: int) -> bool:
        """Restore this rank's state before the first step; returns whether the training is resumed.

        Raises CorruptError if the restored state, or the state that the training begins with, is not finite, and
        TrainwrightError if our loader does not stand where the checkpoint was made.
        """
        context = self._context
        if context.resume is not None:
            check_resumed(trainer, context.resume)
        elif context.init_from is not None and not all_finite(trainer.lightning_module):
            raise CorruptError(
                f"{context.init_from.uri}, which train.init_from names, holds weights that are not finite."
            )
        at = samples_done(trainer, context.train.global_batch_size)
        if not self._own_loader and at != self._samples:
            raise TrainwrightError(
                f"The loader of rank {context.rank} begins after {at:,} samples instead of {self._samples:,}, so the "
                "training would see other rows."
            )
        if self._folder is None or context.resume is None:
            # The same seed on all ranks made equal replicas; from here on each rank draws its own dropout masks, and
            # the first rank those that it would draw with Lightning alone.
            if context.rank:
                seed_rank(context.train.seed, 0, context.rank)
            return False
        self._freeze(trainer)
        # A loader without a position restarts its epoch, but Lightning has counted these batches already.
        replay_batches(trainer, fetcher, batches_done)
        if self._rank_state is None:
            seed_rank(context.train.seed, context.resume.step, context.rank)
        else:
            restore_rng(self._rank_state["rng"])
            restore_running(trainer, self._rank_state["running"])
        return True

    def _freeze(self, trainer: L.Trainer) -> None:
        """Freeze the parameters that were frozen, and no others: a hook may thaw some in an epoch that is not begun
        again.
        """
        for name, parameter in _parameters(trainer):
            if self._frozen is not None and parameter.requires_grad == (name in self._frozen):
                parameter.requires_grad_(name not in self._frozen)


def _parameters(trainer: L.Trainer) -> Iterator[tuple[str, nn.Parameter]]:
    return ((plain_name(name), parameter) for name, parameter in trainer.lightning_module.named_parameters())


def samples_done(trainer: L.Trainer, global_batch_size: int) -> int:
    """Samples of the training so far, over all ranks; where the loader is the user's, a batch of it on each rank counts
    as a global batch, however many optimizers step on it.
    """
    loader = loader_of(trainer)
    return batches_begun(trainer) * global_batch_size if loader is None else loader.samples


def capture_running(trainer: L.Trainer) -> dict[str, object]:
    """The accumulated values of this rank, as values that `state.encode` takes; empty between epochs."""
    metrics = {
        path: {"count": update_count(metric), "states": states_of(metric)}
        for path, metric in _own_metrics(trainer)
        if update_count(metric)
    }
    return {"logged": capture_logged(trainer), "metrics": metrics}


def restore_running(trainer: L.Trainer, state: Mapping[str, Any]) -> None:
    """Restore what `capture_running` returned."""
    device = trainer.strategy.root_device
    for path, metric in _own_metrics(trainer):
        kept = state["metrics"].get(path)
        if kept is not None:
            restore_states(metric, move_data_to_device(kept["states"], device), kept["count"])
    resume_logged(trainer, move_data_to_device(state["logged"], device))


def _own_metrics(trainer: L.Trainer) -> list[tuple[str, Metric]]:
    modules = trainer.lightning_module.named_modules()
    return [(path, module) for path, module in modules if isinstance(module, Metric)]


class WarmStart(L.Callback):
    """Gives a module its first weights, and records over all generations what was loaded.

    Args:
        folder: files of the checkpoint or import; None for a training that is resumed.
        strict: whether names and shapes must be those of the module.
        report: called with a sentence that says which tensors were loaded.

    Attributes:
        sentence: what was and what was not loaded.
    """

    def __init__(
        self, folder: Path | None, strict: bool, report: Callable[[str], None] = lambda sentence: None
    ) -> None:
        self.sentence = ""
        self._folder, self._strict, self._report = folder, strict, report
        self._loaded: list[str] = []

    @property
    def state_key(self) -> str:
        """Its key in a checkpoint, which no callback of the user's can have."""
        return "trainwright.WarmStart"

    def install(self, module: L.LightningModule, convert: Callable[[L.LightningModule], object]) -> None:
        """Make the module's `configure_model` load the weights after the user's own hook.

        Args:
            convert: gives the module the type of the training's precision; before, so that no weight is rounded.
        """
        folder = self._folder
        if folder is None:
            return

        def load(configured: L.LightningModule) -> None:
            convert(configured)
            self._load(configured, folder)

        after_configuring(module, load)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Check before step 1 that a checkpoint will hold what was loaded."""
        saved = dump_checkpoint(trainer, weights_only=True)["state_dict"] if self._loaded else {}
        lost = sorted(name for name in self._loaded if name not in saved)
        if lost:
            raise UsageError(
                f"train.init_from gives the module {_listed('tensors', lost)}, which its checkpoints leave out: a "
                f"resumed or evaluated module would be without them.",
                remedy="Load them in the module's own __init__, or save them.",
            )

    def state_dict(self) -> dict[str, str]:
        """The record that a resumed training keeps."""
        return {"sentence": self.sentence}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the record."""
        self.sentence = state_dict["sentence"]

    def _load(self, module: nn.Module, folder: Path) -> None:
        with TensorReader(folder, index_of(folder)) as reader:
            own = nn.Module.state_dict(module)
            loaded, self.sentence = match(module, reader.index, strict=self._strict)
            with torch.no_grad():
                for name, path in loaded.items():
                    own[name].copy_(reader.read(path))
        self._loaded = list(loaded)
        self._report(self.sentence)


def index_of(folder: Path) -> Index:
    """The index of a checkpoint, or of external safetensors files."""
    return read_index(folder) if (folder / INDEX).exists() else _outside(folder)


def match(module: nn.Module, index: Index, *, strict: bool, planned: bool = False) -> tuple[dict[str, str], str]:
    """Which tensors of an index a module gets (its name → the index's), and a sentence about all of them.

    Parts of either may be compiled: the names are compared without what torch.compile puts into them. A parameter that
    has several names needs to be given under one.

    Args:
        planned: nothing is loaded into this module, so it may be on the meta device.

    Raises:
        UsageError: no tensor fits, or `strict` and not all do.
    """
    prefix = f"{WEIGHTS}/"
    paths = {plain_name(path.removeprefix(prefix)): path for path in index.tensors if path.startswith(prefix)}
    given = {name: path for name, path in paths.items() if _EXTRA not in name}
    # A module may save only part of itself (`state_dict`); then only that part is loaded.
    whole = {name: tensor for name, tensor in nn.Module.state_dict(module).items() if _is_weight(name, tensor)}
    names = {plain_name(name): name for name in whole}
    given = _below_attribute(given, names)
    expected = {plain_name(name) for name, tensor in module.state_dict().items() if _is_weight(name, tensor)}
    unfit = {
        name: fault
        for name in names.keys() & given
        if (fault := _misfit(whole[names[name]], index.tensors[given[name]], planned=planned))
    }
    fits = sorted(names.keys() & given.keys() - unfit.keys())
    parameters = {plain_name(name): each for name, each in module.named_parameters(remove_duplicate=False)}
    tied = {id(parameters[name]) for name in fits if name in parameters}
    missing = sorted(name for name in expected - given.keys() if id(parameters.get(name)) not in tied)
    sentence = _sentence(len(fits), missing, sorted(given.keys() - names), unfit)
    complete = not (unfit or missing) and given.keys() <= names.keys()
    if not fits or (strict and not complete):
        raise UsageError(
            f"train.init_from does not fit {type(module).__name__}: {sentence}.",
            remedy="With strict: false, the tensors that fit are loaded."
            if fits
            else "No tensor in it fits; name other weights.",
        )
    return {names[name]: given[name] for name in fits}, sentence


def _below_attribute(given: dict[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """`given`, renamed for a module that holds the model that saved the tensors as an attribute.

    Its names begin with the attribute's (`model.`), and peft calls a layer that it adapts `base_layer`. Nothing is
    renamed if a name is the module's own, or if the tensors fit below several attributes equally well.
    """
    plain = {name.replace(".base_layer.", "."): name for name in names}
    longest = max(given, key=len, default="")
    prefixes = [name.removesuffix(longest) for name in plain if name.endswith(f".{longest}")]
    fitting = sorted((sum(prefix + name in plain for name in given), prefix) for prefix in prefixes)
    if names.keys() & given or not fitting or (fitting[1:] and fitting[-1][0] == fitting[-2][0]):
        return given
    return {plain.get(fitting[-1][1] + name, name): path for name, path in given.items()}


def _is_weight(name: str, tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and _EXTRA not in name


def _misfit(tensor: torch.Tensor, entry: Entry, *, planned: bool) -> str:
    """Why an external tensor cannot become the module's, or "". A float of another width can: it is converted."""
    floating = getattr(torch, entry.dtype).is_floating_point
    if tuple(tensor.shape) != entry.shape or tensor.dtype.is_floating_point != floating:
        return f"{entry.dtype} {list(entry.shape)} for {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    lost = tensor.is_meta and not planned
    return "given to a module on the meta device, which holds nothing" if lost else ""


def _outside(folder: Path) -> Index:
    """The index of external safetensors files, made from their headers."""
    tensors: dict[str, Entry] = {}
    for path in sorted(folder.glob("*.safetensors")):
        file = TensorFile(path)
        for key in file.keys:
            (dtype, shape), name = file.kind(key), f"{WEIGHTS}/{key}"
            if dtype not in _DTYPES:
                raise UsageError(f"train.init_from: {path.name}: {key} is {dtype}, which is not read here.")
            if name in tensors:
                raise UsageError(f"train.init_from: {key} is in {path.name} and in another file of the folder.")
            tensor_slice = TensorSlice(file=path.name, key=key, offset=(0,) * len(shape), shape=shape)
            tensors[name] = Entry(shape=shape, dtype=_DTYPES[dtype], slices=[tensor_slice] if 0 not in shape else [])
        file.close()
    return Index(tensors=tensors)


def _sentence(loaded: int, missing: list[str], unexpected: list[str], unfit: Mapping[str, str]) -> str:
    """A sentence such as `4 tensors loaded, 2 missing (head.weight, head.bias)`. It names no path, so an id may hold
    it.
    """
    parts = [f"{loaded} tensor{'s' if loaded != 1 else ''} loaded"]
    parts += [_listed("missing", missing)] if missing else []
    parts += [_listed("unexpected", unexpected)] if unexpected else []
    parts += [_listed("of another shape or type", [f"{n}: {unfit[n]}" for n in sorted(unfit)])] if unfit else []
    return ", ".join(parts)


def _listed(what: str, names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{len(names)} {what} ({', '.join(names[:_NAMED])}{more})"
