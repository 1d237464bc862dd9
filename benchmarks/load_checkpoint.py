"""Loads of a checkpoint for `checkpoint.py`, in a process of their own as verify and a resumed rank do it.

    python benchmarks/load_checkpoint.py {view,own,torch,safetensors} COPIES

COPIES is JSON: where each copy lies in each form. Prints the seconds that each took; the first one, a small one, takes
the imports and the start of threads upon itself.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data_contracts.handoffs import Ref
from infra.store import open_store
from training.checkpoint.files import TensorReader, read_state


def ours(copy: dict[str, Any], *, own: bool) -> Any:
    """Every byte against its digest, then the tensors: where they lie in mapped files, or in memory of our own."""
    store, ref = open_store(copy["store"], create=False), Ref.model_validate(copy["ref"])
    store.verify(ref)
    with TensorReader(store.local(ref)) as reader:
        return read_state(reader.folder, reader.read if own else reader.view)


WAYS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "view": lambda copy: ours(copy, own=False),
    "own": lambda copy: ours(copy, own=True),
    "torch": lambda copy: torch.load(copy["torch"], weights_only=True),
    "safetensors": lambda copy: load_file(copy["safetensors"]),
}


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors inside of dictionaries and lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(one)


if __name__ == "__main__":
    for copy in json.loads(sys.argv[2]):
        since = time.perf_counter()
        held = WAYS[sys.argv[1]](copy)
        # Files may only have been mapped: one byte of each page is read.
        for value in tensors_in(held):
            value.reshape(-1).view(torch.uint8)[::4096].sum()
        print(time.perf_counter() - since)
