"""Limits the sizes of a checkpoint's JSON files: the writer keeps to the reader's limit, checked before step 1."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer

from data_contracts.canonical import canonical
from data_contracts.errors import UsageError
from data_contracts.foreign_files import check_nesting
from data_contracts.quoting import text_of
from training.checkpoint import tensors
from training.checkpoint.capture import Capture
from training.checkpoint.tensors import INDEX, OWN, STATE, WEIGHTS

# The bytes of an index without tensors.
_ENVELOPE_BYTES = 64


def index_bytes(taken: Capture) -> int:
    """The bytes that this rank's part adds to the index, exact or slightly more; also for a dry capture."""
    total = _ENVELOPE_BYTES if taken.rank == 0 else 0
    for name, entry in taken.entries.items():
        if taken.rank == 0 or name.startswith(f"{OWN}/"):
            total += len(canonical({name: entry.to_json()}))
        elif entry.sharded:
            total += sum(len(canonical(piece.to_json())) + 1 for piece in entry.pieces)
    return total


def check_sizes(index: int, state: int) -> None:
    """UsageError if a checkpoint with an index and a state of so many bytes could be written but not read."""
    for name, size in ((INDEX, index), (STATE, state)):
        if size > tensors.MAX_JSON_BYTES:
            raise UsageError(
                f"A checkpoint of this training would have a file {name} of {size:,} bytes, but a file of more than "
                f"{tensors.MAX_JSON_BYTES:,} cannot be read.",
                remedy="Shard over fewer ranks (hsdp, or fewer nodes), or keep less in the saved state.",
            )


def state_bytes(taken: Capture) -> int:
    """The size of the state's file."""
    return len(dumps(taken.state))


def future_bytes(taken: Capture, optimizers: Sequence[Optimizer]) -> int:
    """The bytes that optimizers without state add to the index at their first step: as the weights for each moment."""
    weights = Capture(taken.rank, dry=True)
    weights.entries = {name: entry for name, entry in taken.entries.items() if name.startswith(f"{WEIGHTS}/")}
    moments = sum(_moments(optimizer) for optimizer in optimizers if not optimizer.state)
    return index_bytes(weights) * (moments + (taken.rank == 0 and moments > 0))  # the step number of each tensor, too


def _moments(optimizer: Optimizer) -> int:
    options = optimizer.param_groups[0] if optimizer.param_groups else {}
    return 2 if "betas" in options else 1 if options.get("momentum") else 0


def dumps(value: Any) -> bytes:
    """JSON in one line; UsageError for a value that could be written but not read."""
    # Not canonical JSON, which sorts keys: the order of a dictionary is part of the state.
    data = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    try:
        check_nesting(data)
    except ValueError as error:
        raise UsageError(
            f"A checkpoint of this training could not be read again: in its state, {text_of(error)}.",
            remedy="Keep less in the saved state, or less deeply nested.",
        ) from error
    return data
