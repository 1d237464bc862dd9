"""The weights of a checkpoint as NumPy arrays, read from its safetensors files without torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError
from data_contracts.foreign_json import parse_json
from data_contracts.handoffs import Ref
from infra.records.checkpoints import WEIGHT_FILES, plain_name
from infra.store import Manifest, Store

_INDEX, _STATE_DICT = "index.json", "state_dict/"
# dtypes of safetensors that NumPy has; bfloat16 is widened, and one-byte floats are compared as bytes.
_DTYPES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "BOOL": "?"},
    **{"U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "C64": "<c8"},
}
# A header that is larger does not belong to a checkpoint.
_MOST_HEADER = 2**28
# Values that are widened to float64 at once.
_CHUNK = 2**22


@dataclass(frozen=True)
class TensorChange:
    """One tensor in two checkpoints.

    Attributes:
        shapes: before and after; None where there is no tensor of this name.
        norms: Euclidean norms; None where they cannot be computed.
        difference: norm of the difference; None if the shapes differ, or a norm is missing.
        largest: the largest absolute difference of a value.
    """

    name: str
    shapes: tuple[tuple[int, ...] | None, tuple[int, ...] | None]
    norms: tuple[float | None, float | None]
    difference: float | None
    largest: float | None
    same: bool

    @property
    def relative(self) -> float | None:
        """The norm of the difference beside the norm before."""
        before = self.norms[0]
        return None if self.difference is None or not before else self.difference / before

    def to_json(self) -> dict[str, Any]:
        """The change as objects that JSON can hold."""
        return {**vars(self), "relative": self.relative}


def num_bytes(store: Store, checkpoint: Ref) -> int:
    """Bytes of the weights of a checkpoint."""
    return sum(file.bytes for file in store.manifest(checkpoint).files if file.path.startswith(WEIGHT_FILES))


def weights(store: Store, checkpoint: Ref) -> Iterator[tuple[str, NDArray[Any]]]:
    """Each tensor of the module with its plain name, by name; the files are checked against their digests.

    Raises: CorruptError for files that are not what was sealed, or not what the index says.
    """
    manifest = store.manifest(checkpoint)
    tensors = store.read_sealed_as(manifest, _INDEX, _module_tensors)
    # Tied weights are made of the same pieces, and put together once.
    times = Counter(map(canonical, tensors.values()))
    tied: dict[bytes, NDArray[Any]] = {}
    claimed: set[tuple[str, str]] = set()
    files: dict[str, dict[str, NDArray[Any]]] = {}
    for name, (shape, pieces) in tensors.items():
        for piece in pieces:
            if piece["file"] not in files:
                files[piece["file"]] = _arrays(store, manifest, piece["file"])
        made_of = canonical((shape, pieces))
        try:
            if (whole := tied.get(made_of)) is None:
                parts = [files[piece["file"]][piece["key"]] for piece in pieces]
                keys = {(piece["file"], piece["key"]) for piece in pieces}
                # Before it is put together: what someone else wrote may claim any shape, or the same bytes many times.
                if sum(part.size for part in parts) != math.prod(shape) or len(keys) < len(pieces) or keys & claimed:
                    raise ValueError("its pieces are not the whole tensor, or are named twice")
                claimed |= keys
                whole = _whole(tuple(shape), pieces, parts)
                if times[made_of] > 1:
                    tied[made_of] = whole
            yield name, whole
        except (KeyError, ValueError, TypeError) as error:
            raise CorruptError(f"{manifest.uri}/{_INDEX} does not match the tensors in its files.") from error


def _module_tensors(value: Any) -> dict[str, tuple[list[int], list[dict[str, Any]]]]:
    """Shape and pieces of each of the module's tensors, by name, from a checkpoint's index."""
    tensors = {}
    for full, entry in sorted(value["tensors"].items()):
        pieces = [piece for piece in entry["pieces"] if str(piece["file"]).startswith(WEIGHT_FILES)]
        if full.startswith(_STATE_DICT) and pieces:
            tensors[plain_name(full.removeprefix(_STATE_DICT))] = (list(entry["shape"]), pieces)
    return tensors


def compare(stores: tuple[Store, Store], checkpoints: tuple[Ref, Ref]) -> list[TensorChange]:
    """Every tensor of two checkpoints side by side, those that changed most first."""
    before, after = (dict(weights(store, ref)) for store, ref in zip(stores, checkpoints, strict=True))
    found = [_change(name, before.get(name), after.get(name)) for name in dict.fromkeys([*before, *after])]
    return sorted(found, key=lambda one: (one.same, one.difference is not None, -(one.relative or 0.0), one.name))


def _change(name: str, before: NDArray[Any] | None, after: NDArray[Any] | None) -> TensorChange:
    shapes = (None if before is None else before.shape, None if after is None else after.shape)
    norms = (_norm(before), _norm(after))
    if before is None or after is None or before.shape != after.shape:
        return TensorChange(name, shapes, norms, None, None, same=False)
    if before.dtype.kind == "V" or after.dtype.kind == "V":
        alike = before.dtype == after.dtype and before.tobytes() == after.tobytes()
        return TensorChange(name, shapes, norms, 0.0 if alike else None, 0.0 if alike else None, same=alike)
    total, largest = 0.0, 0.0
    left, right = before.reshape(-1), after.reshape(-1)
    wide = np.result_type(left, right, np.float64)  # complex128, if one of them is complex
    for start in range(0, left.size, _CHUNK):
        off = np.abs(right[start : start + _CHUNK].astype(wide) - left[start : start + _CHUNK])
        total, largest = total + float(off @ off), max(largest, float(off.max()))
    off_norm = math.sqrt(total) if math.isfinite(total) else None
    return TensorChange(name, shapes, norms, off_norm, largest if math.isfinite(largest) else None, same=total == 0.0)


def _norm(tensor: NDArray[Any] | None) -> float | None:
    if tensor is None or tensor.dtype.kind == "V":
        return None
    total, flat = 0.0, tensor.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        part = np.abs(flat[start : start + _CHUNK]).astype(np.float64)
        total += float(part @ part)
    return math.sqrt(total) if math.isfinite(total) else None


def _whole(shape: tuple[int, ...], pieces: list[dict[str, Any]], parts: list[NDArray[Any]]) -> NDArray[Any]:
    """A tensor put together from its pieces."""
    if len(parts) == 1 and parts[0].shape == shape:
        return parts[0]
    whole = np.zeros(shape, dtype=parts[0].dtype)
    for piece, part in zip(pieces, parts, strict=True):
        place = tuple(slice(at, at + size) for at, size in zip(piece["offset"], piece["shape"], strict=True))
        whole[place] = part.reshape(piece["shape"])
    return whole


def _arrays(store: Store, manifest: Manifest, name: str) -> dict[str, NDArray[Any]]:
    """The tensors of a safetensors file by key: a header of JSON with dtype, shape and offsets, then the bytes."""
    data = store.read_sealed(manifest, name)
    try:
        entries, begin = tensor_entries(lambda start, stop: data[start:stop], min(_MOST_HEADER, len(data)))
        body = memoryview(data)[begin:]
        return {key: _array(entry, body) for key, entry in entries.items()}
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise CorruptError(f"{manifest.uri}/{name} is not a file of tensors.") from error


def tensor_entries(span: Callable[[int, int], Any], most_bytes: int) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, by key, and the place after it, where the tensors begin.

    ValueError, TypeError or LookupError if it is not of this form: a header larger than `most_bytes`, bytes of several
    tensors, or of none.

    Args:
        span: the file's bytes from one place to another.
    """
    size = int.from_bytes(span(0, 8), "little")
    if size > most_bytes:
        raise ValueError("its header is longer than the file, or than any that is read")
    entries, taken = dict(parse_json(bytes(span(8, 8 + size)))), 0
    entries.pop("__metadata__", None)
    for start, stop in sorted(entry["data_offsets"] for entry in entries.values()):
        if start != taken or stop < start:  # bytes of two tensors would be taken as often as a header names them
            raise ValueError("its tensors do not follow one another")
        taken = stop
    return entries, 8 + size


def _array(entry: Mapping[str, Any], body: memoryview) -> NDArray[Any]:
    start, end = entry["data_offsets"]
    raw = body[start:end]
    if entry["dtype"] == "BF16":
        wide = np.frombuffer(raw, dtype="<u2").astype("<u4") << np.uint32(16)
        return wide.view("<f4").reshape(entry["shape"])
    dtype = np.dtype(_DTYPES.get(entry["dtype"], "V1"))
    return np.frombuffer(raw, dtype=dtype).reshape(entry["shape"])
