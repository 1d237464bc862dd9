"""Sample order as a pure function: never of the machine, its memory or the number of ranks."""

from __future__ import annotations

import numpy as np
from blake3 import blake3

from data_contracts.canonical import canonical


def permutation(num_rows: int, *words: str | int) -> np.ndarray:
    """A permutation of `range(num_rows)`, int64, drawn with the words as its seed."""
    seed = np.frombuffer(blake3(canonical(list(words))).digest(), "<u4").astype(np.uint32)
    # RandomState's stream is frozen (NEP 19); default_rng's may change from one NumPy to the next.
    return np.random.RandomState(seed).permutation(num_rows).astype(np.int64, copy=False)


def global_order(num_rows: int, dataset_id: str, seed: int, epoch: int) -> np.ndarray:
    """The order in which one epoch takes the rows of the train split: a true permutation of all of them, int64."""
    return permutation(num_rows, "order", dataset_id, seed, epoch)
