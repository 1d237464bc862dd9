"""Which entries of a batch the `forward` of a module without a predict_step gets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import lightning as L

from data_contracts.errors import UsageError


def call_forward(module: L.LightningModule, batch: Any, targets: Collection[str | None], columns: Any) -> Any:
    """What a module without its own predict_step returns for a batch; UsageError as in `match_forward`.

    Args:
        targets: entries that are the truth; columns: the spec's `train.batch`.
    """
    keyed = isinstance(batch, dict)
    if not keyed and not isinstance(batch, tuple | list):
        return module(batch)
    names = [str(key) for key in batch] if keyed else [""] * len(batch)
    if not keyed and isinstance(columns, list) and len(columns) == len(batch):
        names = entry_names(columns)
    values = list(batch.values()) if keyed else batch
    matched = match_forward(module.forward, names, targets, keyed=keyed)
    if matched is None:
        return module({key: value for key, value in batch.items() if key not in targets})
    return module(*[values[at] for at in matched[0]], **{name: values[at] for name, at in matched[1].items()})


def entry_names(batch: Mapping[str, Any] | Sequence[Any]) -> list[str]:
    """The names of a batch's entries by `train.batch`; "" for columns that are stacked in a tuple."""
    return list(batch) if isinstance(batch, Mapping) else [one if isinstance(one, str) else "" for one in batch]


def match_forward(
    forward: Callable[..., Any], names: Sequence[str], targets: Collection[str | None], *, keyed: bool
) -> tuple[list[int], dict[str, int]] | None:
    """Which entries of a batch `forward` gets: those by position, and by parameter. None: the dictionary without truth.

    Entries go to the parameters of their names. Those that are left go to the required parameters that are left if
    there are equally many, in the order of a tuple. A single parameter gets a tuple's first entry or the dictionary.

    Args:
        forward: a bound method.
        names: of the batch's entries; keyed: whether it is a dictionary.
        targets: names or positions of entries that are the truth.

    Raises: UsageError if it is in doubt.
    """
    parameters = inspect.signature(forward).parameters
    named = [one for one in parameters.values() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    truth = set(targets)
    places = [{name} if keyed else {name, f"{at}", f"{at - len(names)}"} for at, name in enumerate(names)]
    left = [at for at, called in enumerate(places) if not called & truth]
    found = {one.name: at for one in named for at in left if names[at] == one.name}
    missing = [one.name for one in named if one.default is one.empty and one.name not in found]
    spare = [at for at in left if at not in found.values()]
    if not found and not missing:  # all are optional, or there are none
        missing = [one.name for one in named[:1]]
    if not named and not keyed:
        return left, {}
    if not named and any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return [], {names[at]: at for at in left}
    optional = [one.name for one in named if one.name not in {*found, *missing}]
    if len(missing) <= 1 and not found:
        if keyed:
            return (left, {}) if len(left) == 1 else None
        if len(left) == 1 or not optional or not any(truth):
            return left[:1], {}
    elif not missing and (keyed or not spare or not optional):
        return [], found
    if len(missing) == len(spare) > 0 and (not keyed or len(spare) == 1):
        return [], {**found, **dict(zip(missing, spare, strict=True))}
    entries = ", ".join(names[at] or f"number {at}" for at in left)
    raise UsageError(
        f"train.batch: forward takes {', '.join(one.name for one in named)}, and it is in doubt which of them get the "
        f"entries of a batch ({entries}).",
        remedy="Give the entries the names of the parameters, or write a predict_step(batch, batch_idx).",
    )
