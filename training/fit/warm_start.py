"""Warm start: loads the module's first weights, from a checkpoint or from external safetensors, before step 1.

They are loaded whole on every rank after the user's `configure_model` and before anything is sharded, wrapped or
optimized, so all strategies begin alike. A resumed training loads its own checkpoint instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import nn

from data_contracts.errors import UsageError
from infra.records.handoffs import plain_name
from training.checkpoint.files import DTYPES, INDEX, WEIGHTS, Entry, Index, Piece, TensorFile, TensorReader, read_index
from training.lightning_adapter import dump_checkpoint
from training.user.ready import after_configuring

_NAMED = 3
# The result of get_extra_state belongs to one training, and need not be a tensor.
_EXTRA = "_extra_state"
_DTYPES = {name: str(dtype).removeprefix("torch.") for dtype, name in DTYPES.items()}


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

    def state_dict(self) -> dict[str, Any]:
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


def _misfit(ours: torch.Tensor, theirs: Entry, *, planned: bool) -> str:
    """Why an external tensor cannot become the module's, or "". A float of another width can: it is converted."""
    floating = getattr(torch, theirs.dtype).is_floating_point
    if tuple(ours.shape) != theirs.shape or ours.dtype.is_floating_point != floating:
        return f"{theirs.dtype} {list(theirs.shape)} for {str(ours.dtype).removeprefix('torch.')} {list(ours.shape)}"
    lost = ours.is_meta and not planned
    return "given to a module on the meta device, which holds nothing" if lost else ""


def _outside(folder: Path) -> Index:
    """The index of external safetensors files, made from their headers."""
    tensors: dict[str, Entry] = {}
    for path in sorted(folder.glob("*.safetensors")):
        file = TensorFile(path)
        for key in file.keys():  # noqa: SIM118  (no dictionary)
            (dtype, shape), name = file.kind(key), f"{WEIGHTS}/{key}"
            if dtype not in _DTYPES:
                raise UsageError(f"train.init_from: {path.name}: {key} is {dtype}, which is not read here.")
            if name in tensors:
                raise UsageError(f"train.init_from: {key} is in {path.name} and in another file of the folder.")
            piece = Piece(file=path.name, key=key, offset=(0,) * len(shape), shape=shape)
            tensors[name] = Entry(shape=shape, dtype=_DTYPES[dtype], pieces=[piece] if 0 not in shape else [])
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
