"""The random number generators of one rank: Python's, NumPy's, torch's and those of its CUDA device."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from data_contracts.canonical import digest


def capture_rng() -> dict[str, Any]:
    """The state of all four, as values that `state.encode` takes."""
    name, keys, position, has_gauss, gauss = np.random.get_state()
    state = {
        "python": random.getstate(),
        "numpy": (name, np.asarray(keys).tobytes(), position, has_gauss, gauss),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state().numpy().tobytes()
    return state


def restore_rng(state: dict[str, Any]) -> None:
    """Restore what `capture_rng` returned; a CUDA state is left out on a machine without a CUDA device."""
    random.setstate(state["python"])
    name, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, np.frombuffer(keys, np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(torch.frombuffer(bytearray(state["torch"]), dtype=torch.uint8))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.frombuffer(bytearray(state["cuda"]), dtype=torch.uint8))


def seed_rank(seed: int, step: int, rank: int) -> None:
    """Seed all generators from (seed, step, rank), so that ranks draw different dropout masks."""
    value = int(digest([seed, step, rank])[:8], 16)
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)
