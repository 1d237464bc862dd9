"""Counts the arithmetic and the memory traffic of a step's operations, and measures what the device can do of each.

The counts are those of the roofline model (Williams, Waterman, Patterson, CACM 52(4), 2009). FLOPs are those of matrix
products, convolutions and attention, as torch counts them. Bytes are what operations read and write if no cache keeps
anything between two operations, so they are an upper bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

_WIDTH, _COPIED_BYTES, _FOR_S = 1024, 2**26, 0.15


class OperationCounter(TorchDispatchMode):
    """Counts the operations that run inside it.

    Attributes:
        bytes: read and written.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._flops = FlopCounterMode(display=False)

    @property
    def flops(self) -> int:
        """Floating-point operations so far."""
        return int(self._flops.get_total_flops())

    def __enter__(self) -> OperationCounter:
        self._flops.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._flops.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.bytes += traffic([*tree_leaves(args), *tree_leaves(kwargs or {})], tree_leaves(made), func._schema)
        return made


def traffic(taken: list[Any], made: list[Any], schema: Any) -> int:
    """Bytes of an operation's arguments and results; 0 for one that only makes a view of its argument."""
    given = [one for one in taken if isinstance(one, torch.Tensor)]
    results = [one for one in made if isinstance(one, torch.Tensor)]
    if not schema.is_mutable and given and all(any(_shares(one, other) for other in given) for one in results):
        return 0
    return sum(one.numel() * one.element_size() for one in [*given, *results])


def _shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    try:
        return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() != 0
    except (NotImplementedError, RuntimeError):  # a tensor without storage of its own
        return False


def peaks(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """FLOPs and bytes per second that this process gets from the device with large operands."""
    left = torch.ones(_WIDTH, _WIDTH, device=device, dtype=dtype)
    product = torch.empty_like(left)
    source = torch.ones(_COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)
    multiplied = _per_second(lambda: torch.mm(left, left, out=product), device)
    return multiplied * 2 * _WIDTH**3, _per_second(lambda: target.copy_(source), device) * 2 * _COPIED_BYTES


def _per_second(call: Callable[[], Any], device: torch.device) -> float:
    def settle() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    with torch.no_grad():
        call()  # the first call prepares libraries
        settle()
        calls, began = 0, time.perf_counter()
        while (seconds := time.perf_counter() - began) < _FOR_S:
            call()
            settle()
            calls += 1
    return calls / seconds
