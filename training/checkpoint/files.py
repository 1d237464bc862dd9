"""The files of a checkpoint: values as tagged JSON, tensors as slices in safetensors files, and reading both.

Tagged JSON holds Python values that plain JSON would lose (tuples, sets, integer keys, infinities, …). `put` stores
each tensor or array under the path of its place in the value; only a reference remains. Dictionaries keep their order.
A value that has no format here raises UnsupportedState: nothing is ever pickled.

The safetensors library either writes a file itself or returns all of it in memory, so a checkpoint's bytes would be
moved twice. Here they come chunk by chunk and without a copy, for a store that hashes them as it writes them. They are
exactly those of the library's `save`: eight bytes with the header's length, the header (JSON, padded to eight), the
tensors by type and then by name. See https://github.com/huggingface/safetensors#format.

Tensors are read on any number of ranks or without ranks. A reader trusts only what the seal promises about the folder:
file names must match our pattern, a tensor's slices must cover it exactly once, and shape and dtype in the file must be
those of the index.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field, ValidationError
from torch.nn.parameter import is_lazy

from data_contracts.errors import CorruptError
from data_contracts.foreign_files import parse_json, read_plain
from data_contracts.handoffs import HandOff, Record
from data_contracts.quoting import text_of, type_and_text
from infra.records.handoffs import WEIGHT_FILES, plain_name
from infra.store.store import CHUNK_BYTES, WHOLE, Share, sealed_file
from infra.weights import MOST_RANKS, part_of_cut, tensor_entries

TAG = "$"
# Kinds of arrays that no tensor holds: text, bytes, times and Python's objects, each of which needs a form of its own.
_IN_JSON = "USmMO"
# An array of short texts has the width of its longest one; so has what comes back.
_MOST_BYTES = 2**28
Put = Callable[[str, torch.Tensor], None]
Get = Callable[[str], torch.Tensor]
TENSOR_CHUNK_BYTES = 2**23
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
INDEX = "index.json"
# A tensor of more parts says how it is cut; one of fewer names them, as it did before there were cuts.
MOST_PIECES = 64
# A process may open a thousand files; a tensor of many ranks lies in more.
MOST_OPEN = 256
STATE = "state.json"
WEIGHTS = "state_dict"
STATE_FILES = "state-"
OWN = "ranks"
_FILE = re.compile(rf"({WEIGHT_FILES}|{STATE_FILES})[0-9]+\.safetensors")
# The dtypes that safetensors and a capture can hold, as torch names them.
STORABLE = {str(dtype).removeprefix("torch.") for dtype in DTYPES}
# An index or a state larger than this does not belong to a checkpoint; reading it would take many times as much memory.
MAX_JSON_BYTES = 2**28
# What reading and decoding foreign JSON may raise.
UNREADABLE = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError)
# More than any tensor has: torch raises errors of its own for sizes that cannot be counted.
_MAX_DIMENSIONS, _MAX_SIZE = 64, 2**48


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


def _tagged(tag: str, value: object) -> dict[str, object]:
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


def file_chunks(tensors: Mapping[str, torch.Tensor]) -> Iterator[memoryview]:
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
        for start in range(0, len(data), TENSOR_CHUNK_BYTES):
            yield data[start : start + TENSOR_CHUNK_BYTES]


class TensorSlice(Record):
    """A box of a tensor: the file and key that hold it, and its offset and shape in the whole."""

    file: str
    key: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]


class Cut(Record):
    """How a tensor lies on many ranks, in place of a slice for each (see `infra.weights.part_of_cut`).

    Attributes:
        file: what stands before the rank's number in the names of the files.
        parts: number of ranks.
    """

    file: str
    key: str
    dimension: int
    parts: int


class Entry(Record):
    """A tensor: global shape, dtype as torch names it, slices or how it is cut. `sharded`: ranks held parts of it."""

    shape: tuple[int, ...]
    dtype: str
    sharded: bool = False
    slices: list[TensorSlice] = Field(default=[], alias="pieces")
    cut: Cut | None = Field(default=None, exclude_if=lambda cut: cut is None)

    @property
    def made_of(self) -> object:
        """What tied weights have in common."""
        return (self.cut, self.shape) if self.cut is not None else tuple(self.slices)

    def slices_in(self, offset: Sequence[int], shape: Sequence[int]) -> Iterator[TensorSlice]:
        """The slices that may have values of the box that begins at `offset` and has `shape`."""
        if self.cut is None:
            yield from self.slices
            return
        start, length = offset[self.cut.dimension], shape[self.cut.dimension]
        part = -(-self.shape[self.cut.dimension] // self.cut.parts) or 1
        for rank in range(start // part, -(-(start + length) // part)):
            if (piece := part_of_cut(self.shape, self.cut.model_dump(), rank)) is not None:
                yield TensorSlice.model_validate(piece)


class Index(HandOff):
    """All tensors of a checkpoint by name.

    `state_dict/<parameter>` for the module's, `ranks/<r>/…` for a rank's own, else the path in the state.
    """

    tensors: dict[str, Entry]


def read_index(folder: Path) -> Index:
    """The index of a checkpoint's folder; CorruptError if its slices do not cover each tensor, each byte once."""
    try:
        index = Index.from_json(read_json(folder / INDEX))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, ValidationError) as error:
        raise CorruptError(f"{folder.name}/{INDEX} cannot be read: {type(error).__name__}.") from error
    fault = find_fault(index.tensors)
    if fault:
        raise CorruptError(f"{folder.name}/{INDEX}: {fault}.")
    return index


def read_tensors(folder: Path, share: Share = WHOLE) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor that the ranks share, whole and on the CPU, one at a time, by name.

    A rank's own tensors (accumulated within an epoch) are left out: only a resumed run needs them.

    Args:
        share: of the tensors, in the order of their names; another process reads the others.
    """
    with TensorReader(folder) as reader:
        names = sorted(name for name in reader.index.tensors if not name.startswith(f"{OWN}/"))
        for name in share.items(names):
            yield name, reader.view(name)


def load_module_weights(module: Any, folder: Path) -> int:
    """Load the module's parameters and buffers, in a single process, and return the number of tensors.

    A LightningModule's `on_load_checkpoint` sees the state first, without what only training needs.

    Raises:
        CorruptError: names, shapes or dtypes are not those of the module.
    """
    with TensorReader(folder) as reader:
        # The module copies the tensors into its own.
        return load_placed_weights(module, folder, reader.view)


def load_placed_weights(module: Any, folder: Path, read: Get) -> int:
    """As `load_module_weights`, with the tensors that `read` gives: of a sharded parameter, this rank's part."""
    state = read_state(folder, read, leave_out=("optimizer_states", "lr_schedulers", "loops", "callbacks"))
    if hasattr(module, "on_load_checkpoint"):
        module.on_load_checkpoint(state)
    weights = state.get(WEIGHTS)
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        raise CorruptError(f"{folder.name}/{STATE} holds no weights.")
    strict = getattr(module, "strict_loading", True)
    weights = as_named(weights, module)
    fault = _misfit(module.state_dict(), weights, strict)
    if fault:
        raise CorruptError(
            f"The checkpoint {folder.name} does not fit {type(module).__name__}: {fault}.",
            remedy="Evaluate it with the code and spec that trained it.",
        )
    module.load_state_dict(weights, strict=strict)
    return sum(isinstance(value, torch.Tensor) for value in weights.values())


def as_named(weights: Mapping[str, Any], module: Any) -> dict[str, Any]:
    """Weights under the names that a module gives them, whether or not parts of it, then or now, are compiled."""
    names = {plain_name(name): name for name in module.state_dict()}
    return {names.get(plain_name(name), name): value for name, value in weights.items()}


def read_state(folder: Path, get: Get, leave_out: Sequence[str] = ()) -> dict[str, Any]:
    """Lightning's checkpoint as a dictionary, without the keys in `leave_out`; `get` returns the tensor of a name."""
    try:
        state = read_json(folder / STATE)
        get = once_each(get)
        return {key: decode(value, get) for key, value in state.items() if key not in leave_out}
    except UNREADABLE as error:
        raise CorruptError(f"{folder.name}/{STATE} cannot be read: {type_and_text(error)}.") from error


def once_each(get: Get) -> Get:
    """`get`, but ValueError for a name that was read already: a state has each of its tensors in one place."""
    names: set[str] = set()

    def read(name: str) -> torch.Tensor:
        if name in names:
            raise ValueError(f"the tensor {name} stands twice")
        names.add(name)
        return get(name)

    return read


def read_json(path: Path) -> Any:
    """A JSON file of a checkpoint; OSError or ValueError if it is not a plain file of JSON within the limits."""
    return parse_json(read_plain(path, MAX_JSON_BYTES))


class TensorReader(AbstractContextManager["TensorReader"]):
    """Reads tensors, whole or in part, from the files that hold their slices."""

    def __init__(self, folder: Path, index: Index | None = None) -> None:
        self.folder = folder
        self.index = index or read_index(folder)
        self._files: dict[str, TensorFile] = {}
        self._times = Counter(entry.made_of for entry in self.index.tensors.values())
        self._tied: dict[Any, torch.Tensor] = {}

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._tied.clear()

    def entry(self, name: str) -> Entry:
        """What the index says about a tensor; CorruptError if it has no tensor of that name."""
        if name not in self.index.tensors:
            raise CorruptError(f"{self.folder.name}/{INDEX} has no tensor {name}.")
        return self.index.tensors[name]

    def read(self, name: str) -> torch.Tensor:
        """The whole tensor, on the CPU, in memory of its own."""
        entry = self.entry(name)
        return self.read_part(name, (0,) * len(entry.shape), entry.shape)

    def view(self, name: str) -> torch.Tensor:
        """The whole tensor, on the CPU, read-only: if it is one slice, without a copy in memory of its own."""
        entry = self.entry(name)
        if len(entry.slices) != 1:
            return self.read(name)
        whole = tuple(slice(0, size) for size in entry.shape)
        return self._read_slice(name, entry, entry.slices[0], whole)

    def read_part(self, name: str, offset: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
        """The box of a tensor that begins at `offset` and has `shape`; CorruptError if a file does not hold it.

        Tied weights are read once, into the same memory.
        """
        entry = self.entry(name)
        made_of = entry.made_of
        part_of = (made_of, entry.dtype, tuple(offset), tuple(shape))
        if part_of in self._tied:
            return self._tied[part_of]
        found = []
        for tensor_slice in entry.slices_in(offset, shape):
            starts = [max(a, b) for a, b in zip(offset, tensor_slice.offset, strict=True)]
            ends = [
                min(a + n, b + m)
                for a, n, b, m in zip(offset, shape, tensor_slice.offset, tensor_slice.shape, strict=True)
            ]
            if any(start >= end for start, end in zip(starts, ends, strict=True)):
                continue
            source = tuple(slice(s - o, e - o) for s, e, o in zip(starts, ends, tensor_slice.offset, strict=True))
            target = tuple(slice(s - o, e - o) for s, e, o in zip(starts, ends, offset, strict=True))
            part = self._read_slice(name, entry, tensor_slice, source)
            if part.shape == tuple(shape) and part.is_contiguous() and self._files[tensor_slice.file].owns(part.nbytes):
                result = part
                break
            found.append((target, part))
        else:
            # Allocated only after the files were seen to hold as much as the index claims.
            result = torch.empty(tuple(shape), dtype=getattr(torch, entry.dtype))
            for target, part in found:
                result[target] = part
        if self._times[made_of] > 1:
            self._tied[part_of] = result
        return result

    def _read_slice(self, name: str, entry: Entry, tensor_slice: TensorSlice, box: tuple[slice, ...]) -> torch.Tensor:
        try:
            if tensor_slice.file not in self._files:
                if len(self._files) >= MOST_OPEN:
                    self._files.pop(next(iter(self._files))).close()
                self._files[tensor_slice.file] = TensorFile(self.folder / tensor_slice.file)
            file = self._files[tensor_slice.file]
            dtype, shape = file.kind(tensor_slice.key)
            if shape == tensor_slice.shape and DTYPES[getattr(torch, entry.dtype)] == dtype:
                return file.read(tensor_slice.key, box)
        except (OSError, ValueError, TypeError, LookupError) as error:
            raise CorruptError(f"{self.folder.name}/{tensor_slice.file} cannot be read: {text_of(error)}.") from error
        raise CorruptError(
            f"{self.folder.name}/{tensor_slice.file}: {tensor_slice.key} is {dtype} {list(shape)}, "
            f"but the index says {entry.dtype} {list(tensor_slice.shape)} of {name}."
        )


class TensorFile:
    """The tensors of a safetensors file; only bytes that were hashed are used (`infra.store.store`).

    Attributes:
        keys: of the tensors, in the order of the header.

    Raises OSError, ValueError, TypeError or LookupError for a file that is not of this form.
    """

    def __init__(self, path: Path) -> None:
        sealed = sealed_file(path)
        self._reader = None if sealed is None else sealed.open()
        self._span = _mapped(path) if self._reader is None else self._reader.span
        self._entries, self._body = tensor_entries(self._span, MAX_JSON_BYTES)
        self.keys = list(self._entries)

    def kind(self, key: str) -> tuple[str, tuple[int, ...]]:
        """A tensor's dtype, as safetensors names it, and shape."""
        entry = self._entries[key]
        return str(entry["dtype"]), tuple(int(size) for size in entry["shape"])

    def read(self, key: str, box: tuple[slice, ...]) -> torch.Tensor:
        """A box of a tensor of a storable dtype; whole rows of it are read."""
        name, shape = self.kind(key)
        dtype = next(dtype for dtype, known in DTYPES.items() if known == name)
        start, stop = self._entries[key]["data_offsets"]
        if stop - start != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{key} has another number of bytes than its shape takes")
        if shape:
            row = math.prod(shape[1:]) * dtype.itemsize
            start, stop = start + box[0].start * row, start + box[0].stop * row
            shape = (box[0].stop - box[0].start, *shape[1:])
        data = self._span(self._body + start, self._body + stop)
        found = torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(shape)
        return found[(slice(None), *box[1:])] if shape else found

    def owns(self, num_bytes: int) -> bool:
        """Whether a tensor of so many bytes is read into memory of its own: no mapped file, nor shared with others."""
        return self._reader is not None and num_bytes > CHUNK_BYTES

    def close(self) -> None:
        """Close the file; tensors that were read stay."""
        if self._reader is not None:
            self._reader.close()


def _mapped(path: Path) -> Callable[[int, int], memoryview]:
    """Spans of a private file, mapped: what is written to them stays in this process."""
    data = np.memmap(path, np.uint8, mode="c").data
    return lambda start, stop: data[start:stop]


def find_fault(tensors: Mapping[str, Entry]) -> str:
    """The first tensor with a fault, and the fault; "" if there is none.

    Tied weights have all their slices in common. Other tensors share none: a few bytes could claim to be any number.
    """
    made_of: dict[tuple[str, str], object] = {}
    cuts: set[tuple[str, str]] = set()
    for name, entry in tensors.items():
        fault = _fault_of(entry) if entry.cut is None else _fault_of_cut(entry, entry.cut)
        if not fault and entry.cut is not None:
            cuts.add((entry.cut.file, entry.cut.key))
        places = [(one.file, one.key) for one in ([entry.cut] if entry.cut is not None else entry.slices)]
        for place in [] if fault else places:
            if made_of.setdefault(place, entry.made_of) != entry.made_of:
                fault = "has a piece of another tensor"
        if fault:
            return f"tensor {name} {fault}"
    for file, key in made_of if cuts else ():
        if (_FILE.sub(r"\1", file), key) in cuts and (file, key) not in cuts:
            return f"tensor {key} in {file} is a part of another tensor"
    return ""


def _fault_of_cut(entry: Entry, cut: Cut) -> str:
    if entry.dtype not in STORABLE:
        return f"has the unknown dtype {entry.dtype}"
    if len(entry.shape) > _MAX_DIMENSIONS or any(not 0 <= size <= _MAX_SIZE for size in entry.shape):
        return "has a size that no tensor has"
    if cut.file not in (WEIGHT_FILES, STATE_FILES):
        return f"lies in {cut.file!r}, which are not files of a checkpoint"
    if not 0 <= cut.dimension < len(entry.shape) or not 1 <= cut.parts <= MOST_RANKS:
        return "is cut as no tensor is"
    return "" if entry.slices == [] else "has pieces, and is cut"


def _fault_of(entry: Entry) -> str:
    """The fault of an entry, or "". Slices must lie inside the tensor, not overlap, and add up to its size."""
    if entry.dtype not in STORABLE:
        return f"has the unknown dtype {entry.dtype}"
    if len(entry.shape) > _MAX_DIMENSIONS or any(not 0 <= size <= _MAX_SIZE for size in entry.shape):
        return "has a size that no tensor has"
    for tensor_slice in entry.slices:
        if not _FILE.fullmatch(tensor_slice.file):
            return f"lies in {tensor_slice.file!r}, which is not a file of a checkpoint"
        if len(tensor_slice.offset) != len(entry.shape) or len(tensor_slice.shape) != len(entry.shape):
            return "has a piece with another number of dimensions"
        sides = zip(tensor_slice.offset, tensor_slice.shape, entry.shape, strict=True)
        if any(start < 0 or length < 1 or start + length > size for start, length, size in sides):
            return "has a piece outside of it"
    if sum(math.prod(tensor_slice.shape) for tensor_slice in entry.slices) != math.prod(entry.shape):
        return "is not made up by its pieces"
    if len({(tensor_slice.file, tensor_slice.key) for tensor_slice in entry.slices}) < len(entry.slices):
        return "has a piece twice"
    return "has pieces that overlap" if _overlap(entry.slices) else ""


def _overlap(slices: list[TensorSlice]) -> bool:
    ordered = sorted(slices, key=lambda tensor_slice: tensor_slice.offset)
    for position, a in enumerate(ordered):
        for b in ordered[position + 1 :]:
            if b.offset[0] >= a.offset[0] + a.shape[0]:
                break
            if all(i < j + m and j < i + n for i, n, j, m in zip(a.offset, a.shape, b.offset, b.shape, strict=True)):
                return True
    return False


def _misfit(module_state: Mapping[str, Any], stored_state: Mapping[str, Any], strict: bool) -> str:
    missing, extra = sorted(set(module_state) - set(stored_state)), sorted(set(stored_state) - set(module_state))
    if strict and missing:
        return f"it has no {missing[0]}" + (f" (and {len(missing) - 1} more)" if missing[1:] else "")
    if strict and extra:
        return f"the module has no {extra[0]}" + (f" (and {len(extra) - 1} more)" if extra[1:] else "")
    for name in sorted(set(module_state) & set(stored_state)):
        own, stored = module_state[name], stored_state[name]
        tensors = isinstance(own, torch.Tensor) and isinstance(stored, torch.Tensor)
        if isinstance(own, torch.Tensor) and not tensors:
            return f"{name} is not a tensor"
        if tensors and not is_lazy(own) and (own.shape, own.dtype) != (stored.shape, stored.dtype):
            return f"{name} is {_kind(stored)}, the module's {_kind(own)}"
    return ""


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
