"""The bytes of a checkpoint: values as tagged JSON, and tensors as the pieces of a safetensors file.

Tagged JSON holds Python values that plain JSON would lose (tuples, sets, integer keys, infinities, …). `put` stores
each tensor or array under the path of its place in the value; only a reference remains. Dictionaries keep their order.
A value that has no format here raises UnsupportedState: nothing is ever pickled.

The safetensors library either writes a file itself or returns all of it in memory, so a checkpoint's bytes would be
moved twice. Here they come piece by piece and without a copy, for a store that hashes them as it writes them. They are
exactly those of the library's `save`: eight bytes with the header's length, the header (JSON, padded to eight), the
tensors by type and then by name. See https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

TAG = "$"
# Kinds of arrays that no tensor holds: text, bytes, times and Python's objects, each of which needs a form of its own.
_IN_JSON = "USmMO"
# An array of short texts has the width of its longest one; so has what comes back.
_MOST_BYTES = 2**28
Put = Callable[[str, torch.Tensor], None]
Get = Callable[[str], torch.Tensor]


class UnsupportedState(Exception):
    """A value that a checkpoint cannot hold without pickle.

    Attributes:
        path: its place, such as `callbacks/Ema/shadow`.
        kind: its type, as text.
    """

    def __init__(self, path: str, kind: str) -> None:
        super().__init__(f"{path} is a {kind}")
        self.path = path
        self.kind = kind


def encode(value: Any, put: Put, path: str = "") -> Any:
    """`value` as objects that JSON can hold.

    Args:
        put: called with the name (its path) and value of each tensor inside.
        path: name of `value` itself.

    Raises:
        UnsupportedState: a value inside has no format here.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, np.generic):
        return _tagged("scalar", [value.dtype.str, encode(value.item(), put, path)])
    # Subclasses, such as Lightning's string enums, compare equal to the plain value that comes back.
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _tagged("float", repr(float(value)))
    if isinstance(value, torch.Tensor):
        put(path, value)
        return _tagged("tensor", path)
    if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray):
        return _encode_array(value, put, path)
    return _encode_container(value, put, path)


def _encode_array(value: np.ndarray[Any, Any], put: Put, path: str) -> Any:
    if value.dtype.kind in "biuf" and value.dtype.isnative and value.dtype != np.longdouble:
        put(path, torch.from_numpy(np.ascontiguousarray(value)).reshape(value.shape))
        return _tagged("ndarray", path)
    if value.dtype.kind in _IN_JSON and value.nbytes <= _MOST_BYTES:
        # Times as whole numbers, without a unit that a Python object would lose.
        plain = value.view(np.int64) if value.dtype.kind in "mM" else value
        items = [encode(item, put, _join(path, at)) for at, item in enumerate(plain.ravel().tolist())]
        return _tagged("array", [value.dtype.str, list(value.shape), items])
    raise UnsupportedState(path, f"NumPy array of {value.dtype}")


def decode(value: Any, get: Get) -> Any:
    """The value that `encode` wrote; `get` returns the tensor of a name. ValueError for an unknown tag."""
    if isinstance(value, list):
        return [decode(item, get) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: decode(item, get) for key, item in value.items()}
    tag: str = value[TAG]
    inner: Any = value.get("value")
    if tag == "tensor":
        return get(inner)
    if tag == "ndarray":
        return get(inner).numpy()
    if tag not in _DECODERS:
        raise ValueError(f"unknown tag {tag!r}")
    return _DECODERS[tag](decode(inner, get))


def _encode_container(value: Any, put: Put, path: str) -> Any:
    kind = type(value)

    def items(values: Any) -> list[Any]:
        return [encode(item, put, _join(path, position)) for position, item in enumerate(values)]

    def pairs(mapping: Any) -> list[Any]:
        return [
            [encode(key, put, _join(path, f"key {position}")), encode(item, put, _join(path, key))]
            for position, (key, item) in enumerate(mapping.items())
        ]

    if kind is dict:
        if all(type(key) is str for key in value) and TAG not in value:
            return {key: encode(item, put, _join(path, key)) for key, item in value.items()}
        return _tagged("dict", pairs(value))
    if kind is list:
        return items(value)
    if kind is OrderedDict or kind is Counter:
        return _tagged(kind.__name__, pairs(value))
    if kind is tuple or kind is torch.Size:
        return _tagged("tuple" if kind is tuple else "Size", items(value))
    if kind is set or kind is frozenset:
        # Sets have no order of their own; sorting by text makes the bytes the same in every process.
        return _tagged(kind.__name__, items(sorted(value, key=lambda item: (type(item).__name__, repr(item)))))
    if kind is deque:
        return _tagged("deque", [value.maxlen, items(value)])
    if kind is bytes or kind is bytearray:
        return _tagged(kind.__name__, base64.b64encode(value).decode())
    if kind is complex:
        return _tagged("complex", items([value.real, value.imag]))
    if kind is torch.dtype or kind is torch.device:
        return _tagged(kind.__name__, str(value).removeprefix("torch."))
    raise UnsupportedState(path, f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."))


def _tagged(tag: str, value: Any) -> dict[str, Any]:
    return {TAG: tag, "value": value}


def _join(path: str, part: Any) -> str:
    return f"{path}/{part}" if path else str(part)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"unknown dtype {name!r}")
    return dtype


def _scalar(dtype: str, value: Any) -> Any:
    kind = np.dtype(dtype)
    # No objects, and no size that only the text claims.
    if kind.kind not in "biufcmMUS":
        raise ValueError(f"unknown scalar {dtype!r}")
    return kind.type(value)


def _array(dtype: str, shape: list[int], items: list[Any]) -> np.ndarray[Any, Any]:
    kind = np.dtype(dtype)
    if kind.kind not in _IN_JSON or kind.itemsize * len(items) > _MOST_BYTES:
        raise ValueError(f"unknown array {dtype!r}")
    array = np.empty(len(items), np.int64 if kind.kind in "mM" else kind)
    for at, item in enumerate(items):  # at once, lists inside would become dimensions
        array[at] = item
    return array.view(kind).reshape(shape)


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "scalar": lambda parts: _scalar(*parts),
    "array": lambda parts: _array(*parts),
    "dict": lambda pairs: dict(pairs),
    "OrderedDict": lambda pairs: OrderedDict(pairs),
    "Counter": lambda pairs: Counter(dict(pairs)),
    "tuple": tuple,
    "Size": torch.Size,
    "set": set,
    "frozenset": frozenset,
    "deque": lambda parts: deque(parts[1], maxlen=parts[0]),
    "bytes": base64.b64decode,
    "bytearray": lambda text: bytearray(base64.b64decode(text)),
    "complex": lambda parts: complex(*parts),
    "dtype": _dtype,
    "device": torch.device,
}


PIECE_BYTES = 2**23
# In the order in which the library puts them into a file.
DTYPES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def file_pieces(tensors: Mapping[str, torch.Tensor]) -> Iterator[memoryview]:
    """The file's bytes in order.

    Args:
        tensors: by name; contiguous, in host memory, of a type in DTYPES.
    """
    places = {dtype: place for place, dtype in enumerate(DTYPES)}
    names = sorted(tensors, key=lambda name: (places[tensors[name].dtype], name))
    header: dict[str, dict] = {}
    at = 0
    for name in names:
        tensor = tensors[name]
        end = at + tensor.nbytes
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    encoded += b" " * (-len(encoded) % 8)
    yield memoryview(len(encoded).to_bytes(8, "little") + encoded)
    for name in names:
        data = tensors[name].reshape(-1).view(torch.uint8).numpy().data
        for start in range(0, len(data), PIECE_BYTES):
            yield data[start : start + PIECE_BYTES]
