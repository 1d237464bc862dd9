"""Weights as NumPy arrays read from safetensors, without torch: of a checkpoint, compared, and from outside.

Weights from outside have the digest that the spec names, and are sealed once under `imports/`. An import with a known
digest is never fetched again, so its origin may move or disappear. Only the header of a file is parsed, and nothing is
unpickled.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from data_contracts.canonical import KEY_LENGTH, canonical
from data_contracts.errors import CorruptError, UsageError
from data_contracts.foreign_files import parse_json
from data_contracts.handoffs import Ref
from data_contracts.pipeline_spec import InitSpec, SourceSpec
from infra import scratch
from infra.files import hash_stream
from infra.records.handoffs import WEIGHT_FILES, plain_name
from infra.settings import on_this_machine, state_folder, writing
from infra.sources.places import Place, SourceEntry, place_of
from infra.store import Manifest, Store, layout
from infra.store.store import sha256_as_sealed

log = logging.getLogger("trainwright")
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
KIND = "import"
ENDING = ".safetensors"
MOST_RANKS = 2**20
ONE = f"model{ENDING}"


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

    def to_json(self) -> dict[str, object]:
        """The change as objects that JSON can hold."""
        return {**vars(self), "relative": self.relative}


def weights(store: Store, checkpoint: Ref) -> Iterator[tuple[str, NDArray[Any]]]:
    """Each tensor of the module with its plain name, by name; the files are checked against their digests.

    Raises: CorruptError for files that are not what was sealed, or not what the index says.
    """
    manifest = store.manifest(checkpoint)
    tensors = store.read_sealed_as(manifest, _INDEX, partial(_module_tensors, most_parts=len(manifest.files)))
    # Tied weights are made of the same slices, and put together once.
    times = Counter(map(canonical, tensors.values()))
    tied: dict[bytes, NDArray[Any]] = {}
    claimed: set[tuple[str, str]] = set()
    files: dict[str, dict[str, NDArray[Any]]] = {}
    for name, (shape, slices) in tensors.items():
        for tensor_slice in slices:
            if tensor_slice["file"] not in files:
                files[tensor_slice["file"]] = _arrays(store, manifest, tensor_slice["file"])
        made_of = canonical((shape, slices))
        try:
            if (whole := tied.get(made_of)) is None:
                parts = [files[tensor_slice["file"]][tensor_slice["key"]] for tensor_slice in slices]
                keys = {(tensor_slice["file"], tensor_slice["key"]) for tensor_slice in slices}
                # Before it is put together: what someone else wrote may claim any shape, or the same bytes many times.
                if sum(part.size for part in parts) != math.prod(shape) or len(keys) < len(slices) or keys & claimed:
                    raise ValueError("its pieces are not the whole tensor, or are named twice")
                claimed |= keys
                whole = _whole(tuple(shape), slices, parts)
                if times[made_of] > 1:
                    tied[made_of] = whole
            yield name, whole
        except (KeyError, ValueError, TypeError) as error:
            raise CorruptError(f"{manifest.uri}/{_INDEX} does not match the tensors in its files.") from error


def part_of_cut(shape: Sequence[int], cut: Mapping[str, Any], rank: int) -> Mapping[str, Any] | None:
    """The part of a tensor that a rank holds, as `index.json` writes a piece; None if the rank holds nothing of it.

    Args:
        shape: of the whole tensor.
        cut: `file`, `key`, `dimension`, `parts`: it is cut along a dimension into parts of equal length, of which the
            last ones may be shorter or missing (as by `torch.chunk`), the i-th in rank i's file.
    """
    dimension, size = cut["dimension"], shape[cut["dimension"]]
    length = -(-size // cut["parts"])
    start, stop = min(rank * length, size), min((rank + 1) * length, size)
    if start == stop:
        return None
    offset, part = [0] * len(shape), list(shape)
    offset[dimension], part[dimension] = start, stop - start
    return {"file": f"{cut['file']}{rank}{ENDING}", "key": cut["key"], "offset": offset, "shape": part}


def pieces_of(entry: Mapping[str, Any], most: int) -> list[Mapping[str, Any]]:
    """The pieces of a tensor of an index, whether it names them or says how the tensor is cut.

    ValueError if these are more parts than `most`: no checkpoint has more than it has files.
    """
    if (cut := entry.get("cut")) is None:
        return list(entry["pieces"])
    if not 1 <= cut["parts"] <= most:
        raise ValueError("a tensor is cut into more parts than there are files")
    parts = (part_of_cut(entry["shape"], cut, rank) for rank in range(cut["parts"]))
    return [part for part in parts if part is not None]


def _module_tensors(value: Any, most_parts: int) -> dict[str, tuple[list[int], list[Mapping[str, Any]]]]:
    """Shape and slices of each of the module's tensors, by name, from a checkpoint's index."""
    tensors = {}
    for full, entry in sorted(value["tensors"].items()):
        pieces = pieces_of(entry, most_parts)
        slices = [tensor_slice for tensor_slice in pieces if str(tensor_slice["file"]).startswith(WEIGHT_FILES)]
        if full.startswith(_STATE_DICT) and slices:
            tensors[plain_name(full.removeprefix(_STATE_DICT))] = (list(entry["shape"]), slices)
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


def _whole(shape: tuple[int, ...], slices: list[Mapping[str, Any]], parts: list[NDArray[Any]]) -> NDArray[Any]:
    """A tensor put together from its slices."""
    if len(parts) == 1 and parts[0].shape == shape:
        return parts[0]
    whole = np.zeros(shape, dtype=parts[0].dtype)
    for tensor_slice, part in zip(slices, parts, strict=True):
        place = tuple(
            slice(at, at + size) for at, size in zip(tensor_slice["offset"], tensor_slice["shape"], strict=True)
        )
        whole[place] = part.reshape(tensor_slice["shape"])
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

    def to_json(self) -> dict[str, object]:
        """The difference as objects that JSON can hold."""
        return asdict(self)


def first_difference(stores: tuple[Store, Store], checkpoints: tuple[Ref, Ref]) -> TensorDifference | None:
    """The first tensor that differs; None if all are equal to the bit. Both are held in memory."""
    before, after = (dict(weights(store, ref)) for store, ref in zip(stores, checkpoints, strict=True))
    both, names = before.keys() & after.keys(), sorted(before.keys() | after.keys())
    differing = [name for name in names if name not in both or not _same(before[name], after[name])]
    if not differing:
        return None
    first = _how(differing[0], before.get(differing[0]), after.get(differing[0]))
    return replace(first, tensors=len(differing), of=len(names))


def _same(before: NDArray[Any], after: NDArray[Any]) -> bool:
    alike = (before.dtype, before.shape) == (after.dtype, after.shape)
    return alike and bool(np.array_equal(_bits(before), _bits(after)))


def _bits(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Bytes of each value: equal NaNs are equal, and -0.0 is not 0.0."""
    return np.ascontiguousarray(values).reshape(-1, 1).view(np.uint8)


def _how(tensor: str, before: NDArray[Any] | None, after: NDArray[Any] | None) -> TensorDifference:
    """How a tensor differs; the numbers of tensors are not known here."""
    if before is None or after is None:
        return TensorDifference(tensor, 0, 0, sentence="it is in one of the two alone")
    if (before.dtype, before.shape) != (after.dtype, after.shape):
        sentence = f"it is {before.dtype}{list(before.shape)} and {after.dtype}{list(after.shape)}"
        return TensorDifference(tensor, 0, 0, sentence=sentence)
    differ = int((_bits(before) != _bits(after)).any(axis=1).sum())
    largest, relative = (None, None) if before.dtype.kind == "V" else _distances(before.reshape(-1), after.reshape(-1))
    return TensorDifference(tensor, 0, 0, differ, before.size, largest, relative)


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


def import_weights(store: Store, init: InitSpec, root: Path, provenance: Mapping[str, object], *, field: str) -> Ref:
    """The sealed import of the weights that `init` names; imported if there is no intact one.

    A file is stored as `model.safetensors`, whatever its name, and a folder's files under their names: the same content
    is the same import wherever it is.

    Args:
        root: the spec's folder, to which a path is relative.
        field: the field of the spec, for errors.

    Raises:
        UsageError: there is no such file, or a file is not in safetensors format.
        CorruptError: the bytes do not match the digest.
        StorageUnavailable: the S3 server does not answer.
    """
    assert init.digest is not None, "weights from outside have a digest"
    kind, _, expected = init.digest.partition(":")
    name = f"{kind}-{expected[:KEY_LENGTH]}"
    # What is deleted, or about to be, is imported under the next name.
    for uri in filter(store.claim, (layout.imported(f"{name}-{n}" if n else name) for n in itertools.count())):
        try:
            import_ = store.verify(uri)
            check_import(store, import_)
            return import_.ref
        except CorruptError as error:
            log.warning("The weights %s are imported again, because the stored copy is damaged: %s", uri, error.message)
        except FileNotFoundError:
            break
    place = place_of(SourceSpec(uri=init.weights, storage_options=init.storage_options), root)
    files = _find(place, init.weights, field)
    with scratch.make("import", root=state_folder()) as folder:
        copies = [(name, *_fetch(place, file, folder.path / name, kind)) for name, file in files]
        listed = [(name, digest) for name, _, digest in copies]
        actual = copies[0][2] if init.weights.endswith(ENDING) else _of_list(listed, kind)
        if actual != expected:
            raise CorruptError(
                f"{field}: {init.weights} has the digest {kind}:{actual}, not the {expected[:16]}… that is named.",
                remedy="Correct the digest, or fetch the weights again.",
            )
        for name, copy, _ in copies:
            _check_form(copy, f"{field}: {init.weights}" + ("" if name == ONE else f"/{name}"))
        writer = store.writer(uri, afresh=True)
        entries = [writer.put(name, copy) for name, copy, _ in copies]
    origin = {"from": init.weights, "digest": init.digest}
    return writer.seal(KIND, {}, {**provenance, "parents": [], "origin": origin}, entries)


def check_import(store: Store, manifest: Manifest) -> None:
    """Raise CorruptError unless sealed weights have the digest in their name; their bytes are as sealed.

    The seal does not prove it, because anyone who can write to the store can seal other weights.
    """
    path = layout.manifest(manifest.uri)
    named = manifest.uri.partition("/")[2]
    kind, _, expected = named.partition("-")
    expected = expected.partition("-")[0]
    found: set[str] = set()
    if manifest.kind == KIND and manifest.uri.startswith("imports/") and kind in ("sha256", "blake3"):
        digests = {file.path: file.blake3 for file in manifest.files}
        if kind == "sha256":
            digests = {file.path: sha256_as_sealed(store, manifest, file) for file in manifest.files}
        found = {_of_list(sorted(digests.items()), kind)}
        found |= {digests[ONE]} if digests.keys() == {ONE} else set()
    if expected not in {digest[:KEY_LENGTH] for digest in found}:
        raise CorruptError(
            f"{manifest.uri} does not hold the weights that its name stands for: it was changed and sealed again.",
            details={"file": path},
        )


def _find(place: Place, weights: str, field: str) -> list[tuple[str, SourceEntry]]:
    """The files with the names under which they are stored, in the order of these names."""
    if weights.endswith(ENDING):
        files = [(ONE, file) for file in place.find(weights)[:1]]
    else:
        found = place.find(f"{glob.escape(weights.rstrip('/'))}/*{ENDING}")
        files = sorted((file.uri.rpartition("/")[2], file) for file in found)
    if not files:
        raise UsageError(
            f"{field}: there are no weights at {weights}.",
            remedy=f"Name a file that ends in {ENDING}, or a folder of such files; a checkpoint is trainings/…/"
            "checkpoints/…, a model name@alias.",
        )
    return files


def _fetch(place: Place, file: SourceEntry, copy: Path, kind: str) -> tuple[Path, str]:
    """A copy of the file on this machine, and its digest."""
    hasher = hashlib.sha256() if kind == "sha256" else blake3()
    with on_this_machine(copy.parent):
        target = copy.open("wb", buffering=0)
    with target, contextlib.closing(place.open(file.uri)) as stream:
        hash_stream(stream, hasher.update, writing(target, copy.parent))
    return copy, hasher.hexdigest()


def _of_list(digests: list[tuple[str, str]], kind: str) -> str:
    """The digest of a folder: over the lines that `sha256sum *.safetensors` prints there."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in digests).encode()
    return (hashlib.sha256(lines) if kind == "sha256" else blake3(lines)).hexdigest()


def _check_form(path: Path, what: str) -> None:
    from safetensors import SafetensorError, safe_open  # an environment of the user's may have none

    try:
        with safe_open(path, framework="numpy") as held:
            names = list(held.keys())
    except (OSError, SafetensorError) as error:
        raise UsageError(
            f"{what} is not a safetensors file ({error}).", remedy="Convert it with safetensors.torch.save_file."
        ) from error
    if not names:
        raise UsageError(f"{what} has no tensors.", remedy="Name a file with weights.")
