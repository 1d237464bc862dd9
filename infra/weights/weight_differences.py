"""Where the weights of two checkpoints differ: the first tensor, how many of its values, and by how much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_contracts.handoffs import Ref
from infra.store import Store
from infra.weights.arrays import weights

# Values that are widened to float64 at once.
_CHUNK = 2**22


@dataclass(frozen=True)
class TensorDifference:
    """The first tensor, by name, that is not the same to the bit.

    Attributes:
        tensors, of: how many tensors differ, of all.
        values, of_values: how many values of this tensor differ, of all; 0 if the shapes or types differ.
        largest: the largest absolute difference of a value; relative: the largest beside the value before. None where
            a value is not finite, or the values are not numbers that NumPy has.
        sentence: how shape or type differ; "" if they are the same.
    """

    tensor: str
    tensors: int
    of: int
    values: int = 0
    of_values: int = 0
    largest: float | None = None
    relative: float | None = None
    sentence: str = ""

    def to_json(self) -> dict[str, Any]:
        """The difference as objects that JSON can hold."""
        return asdict(self)


def first_difference(stores: tuple[Store, Store], checkpoints: tuple[Ref, Ref]) -> TensorDifference | None:
    """The first tensor that differs; None if all are equal to the bit. Both are held in memory."""
    first: dict[str, Any] | None = None
    count = total = 0
    for name, before, after in _pairs(weights(stores[0], checkpoints[0]), weights(stores[1], checkpoints[1])):
        total += 1
        if before is not None and after is not None and _same(before, after):
            continue
        count += 1
        if first is None:
            first = {"tensor": name, **_how(before, after)}
    return None if first is None else TensorDifference(**first, tensors=count, of=total)


_Named = tuple[str, NDArray[Any]]


def _pairs(
    left: Iterator[_Named], right: Iterator[_Named]
) -> Iterator[tuple[str, NDArray[Any] | None, NDArray[Any] | None]]:
    """Both checkpoints' tensors by name, which both give in order; None where one has no tensor of this name."""
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        name = min(known[0] for known in (one, other) if known is not None)
        before = one[1] if one is not None and one[0] == name else None
        after = other[1] if other is not None and other[0] == name else None
        yield name, before, after
        one = next(left, None) if before is not None else one
        other = next(right, None) if after is not None else other


def _same(before: NDArray[Any], after: NDArray[Any]) -> bool:
    alike = (before.dtype, before.shape) == (after.dtype, after.shape)
    return alike and bool(np.array_equal(_bits(before), _bits(after)))


def _bits(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Bytes of each value: equal NaNs are equal, and -0.0 is not 0.0."""
    return np.ascontiguousarray(values).reshape(-1, 1).view(np.uint8)


def _how(before: NDArray[Any] | None, after: NDArray[Any] | None) -> dict[str, Any]:
    if before is None or after is None:
        return {"sentence": "it is in one of the two alone"}
    if (before.dtype, before.shape) != (after.dtype, after.shape):
        return {"sentence": f"it is {before.dtype}{list(before.shape)} and {after.dtype}{list(after.shape)}"}
    differ = int((_bits(before) != _bits(after)).any(axis=1).sum())
    largest, relative = (None, None) if before.dtype.kind == "V" else _distances(before.reshape(-1), after.reshape(-1))
    return {"values": differ, "of_values": before.size, "largest": largest, "relative": relative}


def _distances(before: NDArray[Any], after: NDArray[Any]) -> tuple[float | None, float | None]:
    """The largest absolute and the largest relative difference; None where one is not finite."""
    largest = relative = 0.0
    with np.errstate(all="ignore"):
        for start in range(0, before.size, _CHUNK):
            old, new = (side[start : start + _CHUNK].astype(np.float64) for side in (before, after))
            off = np.abs(new - old)
            largest = max(largest, float(off.max()))
            changed = off != 0
            if changed.any():
                relative = max(relative, float((off[changed] / np.abs(old[changed])).max()))
            if np.isnan(off).any():
                return None, None
    return (largest if np.isfinite(largest) else None), (relative if np.isfinite(relative) else None)
