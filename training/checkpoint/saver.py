"""Captures each rank's part of a checkpoint, and writes a checkpoint from all ranks.

A capture is copies of a rank's tensors in host memory, and the slices that they are. A training step waits for the
capture alone; writing uses the capture and touches neither device nor module. Rank 0 keeps a tensor that every rank
holds whole; of a sharded tensor each rank keeps its own part. Here are also the random number generators of a rank
(Python's, NumPy's, torch's and those of its CUDA device), and the limits on the sizes of a checkpoint's JSON files: the
writer keeps to the reader's limit.

To write, each rank stores its own files; rank 0 adds the index and the state, and seals. Collective: every rank calls
`save` for the same step. A rank that fails reports to the others before it raises, so that no rank is left waiting in a
collective. It may run in the background: a thread writes, hashes, syncs, seals and uploads while training continues.
What ranks exchange beside tensors is JSON as bytes, never a pickle, so that no rank runs what another sent.
"""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from data_contracts.canonical import canonical, digest
from data_contracts.errors import CorruptError, StorageUnavailable, TrainwrightError, UsageError, from_json
from data_contracts.foreign_files import check_nesting
from data_contracts.handoffs import FileEntry, Ref
from data_contracts.quoting import text_of, type_and_text
from infra.records.handoffs import WEIGHT_FILES
from infra.store import Store, Writer
from infra.store.lease import patiently
from infra.store.seal import write_manifest
from infra.weights import ENDING, part_of_cut
from training.checkpoint import files
from training.checkpoint.files import (
    DTYPES,
    INDEX,
    OWN,
    STATE,
    STATE_FILES,
    UNREADABLE,
    WEIGHTS,
    Cut,
    Entry,
    Index,
    TensorReader,
    TensorSlice,
    UnsupportedState,
    decode,
    encode,
    file_chunks,
    find_fault,
    once_each,
    read_json,
)

# Lightning writes hyper-parameters for load_from_checkpoint, which rebuilds a class from them; we build from the spec.
LEFT_OUT = (
    "hyper_parameters",
    "hparams_name",
    "hparams_type",
    "datamodule_hyper_parameters",
    "datamodule_hparams_name",
    "datamodule_hparams_type",
)
KIND = "checkpoint"
HISTORY = "history.json"
TRAIN = "train.json"
# How long a store may be unavailable before the training ends; a retry then starts from the previous checkpoint.
PATIENCE_S = 120.0
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
T = TypeVar("T")
# How long a rank waits for the slowest rank's part to be stored. torchrun notices a rank that died, not this code.
PATIENCE = timedelta(hours=2)


class Staging:
    """Host memory that captures are copied into. The next capture reuses it: allocating costs more than copying.

    A capture in it is valid until the next capture begins. Of tensors on a GPU, the memory is pinned and a stream of
    its own copies: the device's next work waits for the copies, the host does not.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, str], torch.Tensor] = {}
        self._stream: torch.cuda.Stream | None = None
        self._copied: torch.cuda.Event | None = None

    def copy(self, file: str, key: str, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous copy on the host, complete once `wait` has returned."""
        buffer = self._buffers.get((file, key))
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._buffers[file, key] = buffer
        if not tensor.is_cuda:
            return buffer.copy_(tensor)
        if self._stream is None:
            self._stream = torch.cuda.Stream(tensor.device)
        if tensor.device != self._stream.device:
            return buffer.copy_(tensor)  # a copy runs on a stream of its tensor's own device, and this one is not it
        # What computes the tensor comes first.
        self._stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(self._stream):
            return buffer.copy_(tensor, non_blocking=True)

    def close(self) -> None:
        """Let what the device is given from now on come after the copies."""
        if self._stream is not None:
            self._copied = self._stream.record_event()
            torch.cuda.current_stream(self._stream.device).wait_event(self._copied)

    def wait(self) -> None:
        """Wait until all copies are complete."""
        if self._stream is not None and self._copied is not None:
            # A thread that has chosen no device would make a context on the first one.
            with torch.cuda.device(self._stream.device):
                self._copied.synchronize()


class Capture:
    """One rank's part of a checkpoint.

    Attributes:
        state: the rest of the checkpoint as tagged JSON (the same on every rank; rank 0 writes it).
        own: what belongs to this rank alone (generators, running means) as tagged JSON.
        files: file name → key → tensor on the host, once `staging.wait` has returned.
        entries: name → what this rank holds of the tensor.
    """

    def __init__(self, rank: int, *, dry: bool = False, staging: Staging | None = None) -> None:
        self.rank = rank
        self.staging = staging or Staging()
        self.state: dict[str, object] = {}
        self.own: dict[str, object] = {}
        self.files: dict[str, dict[str, torch.Tensor]] = {}
        self.entries: dict[str, Entry] = {}
        self._dry = dry
        self._names: set[str] = set()
        # Keep the tensor too: if it were freed, another could take its address within the same capture.
        self._held: dict[tuple[Any, ...], tuple[str, torch.Tensor]] = {}

    def put_own(self, name: str, tensor: torch.Tensor) -> None:
        """Copy a tensor of this rank's own state, whatever other ranks hold under that name."""
        self.put(f"{OWN}/{self.rank}/{name}", tensor, whole=True)

    def put(self, name: str, tensor: torch.Tensor, *, whole: bool = False) -> None:
        """Copy this rank's part of a tensor, or the whole; UnsupportedState if safetensors cannot hold it."""
        value = tensor.detach()
        if value.layout is not torch.strided or value.dtype not in DTYPES or value.is_meta:
            kind = "meta" if value.is_meta else f"{value.layout} {value.dtype}".replace("torch.", "")
            raise UnsupportedState(name, f"{kind} tensor")
        if name in self._names:
            raise UnsupportedState(name, "second tensor of that name")
        self._names.add(name)
        sharded = isinstance(value, DTensor)
        local, offset, keeps = _part(value, self.rank)
        slices = []
        if (keeps or whole) and local.numel():
            file, key = f"{_file_kind(name)}{self.rank}{ENDING}", _key(name)
            slices = [TensorSlice(file=file, key=self._keep(file, key, local), offset=offset, shape=tuple(local.shape))]
        dtype = str(value.dtype).removeprefix("torch.")
        entry = Entry(shape=tuple(value.shape), dtype=dtype, sharded=sharded, slices=slices)
        if isinstance(value, DTensor):
            entry = as_cut(entry, value, _file_kind(name), slices[0].key if slices else _key(name))
        self.entries[name] = entry

    def _keep(self, file: str, key: str, local: torch.Tensor) -> str:
        # Tied parameters share one storage: it is stored once and found under both names.
        identity = (file, local.device, local.data_ptr(), local.dtype, tuple(local.shape), local.stride())
        if identity not in self._held:
            self._held[identity] = (key, local)
            if self._dry:
                return key
            self.files.setdefault(file, {})[key] = self.staging.copy(file, key, local)
        return self._held[identity][0]

    def close(self) -> None:
        """End the capture and release the originals. `staging.wait` before the copies are read."""
        self.staging.close()
        self._held.clear()


def capture(
    checkpoint: Mapping[str, Any],
    own: Mapping[str, object],
    rank: int,
    *,
    dry: bool = False,
    staging: Staging | None = None,
) -> Capture:
    """Capture this rank's part of Lightning's checkpoint dictionary.

    Args:
        own: state of this rank alone.
        dry: only check that every value has a format, and list the slices; nothing is copied.
        staging: the memory to copy into; default: fresh.

    Raises:
        UnsupportedState: neither safetensors nor JSON can hold a value.
    """
    taken = Capture(rank, dry=dry, staging=staging)
    wanted = {key: value for key, value in checkpoint.items() if key not in LEFT_OUT}
    taken.state = encode(wanted, taken.put)
    taken.own = encode(own, taken.put_own)
    taken.close()
    return taken


def _file_kind(name: str) -> str:
    """What stands before the rank in the name of the file with a tensor."""
    # Weights have files and names of their own, so that any reader of safetensors finds them.
    return WEIGHT_FILES if name.startswith(f"{WEIGHTS}/") else STATE_FILES


def _key(name: str) -> str:
    return name.removeprefix(f"{WEIGHTS}/")


def as_cut(entry: Entry, value: DTensor, file: str, key: str) -> Entry:
    """The entry without slices, if the ranks hold a tensor in more than MOST_PIECES equal parts, in their order.

    Each of many ranks then knows the same of the whole tensor, and nothing of the others need be gathered.

    Args:
        entry: with what this rank holds.
    """
    # Not a subclass, which may cut in another order.
    sharded = [at for at, placement in enumerate(value.placements) if type(placement) is Shard]
    others = all(type(placement) in (Shard, Replicate) for placement in value.placements)
    mesh = value.device_mesh.mesh
    if len(sharded) != 1 or not others or mesh.shape[sharded[0]] <= files.MOST_PIECES:
        return entry
    (at,) = sharded
    first = mesh.movedim(at, -1).reshape(-1, mesh.shape[at])[0]
    placement = value.placements[at]
    assert isinstance(placement, Shard)
    cut = Cut(file=file, key=key, dimension=placement.dim, parts=len(first))
    coordinate = value.device_mesh.get_coordinate()
    assert coordinate is not None, "a rank outside of a tensor's mesh cannot capture it"
    wanted = part_of_cut(entry.shape, cut.model_dump(), coordinate[at])
    is_whole = first.tolist() == list(range(len(first)))
    held = None if not entry.slices else entry.slices[0]
    is_right = not entry.slices or (wanted is not None and held == TensorSlice.model_validate(wanted))
    return entry.model_copy(update={"slices": [], "cut": cut}) if is_whole and is_right else entry


def is_of_rank(name: str, entry: Entry) -> bool:
    """Whether ranks hold different things under the name of a tensor: parts of it, or their own."""
    return entry.sharded or name.startswith(f"{OWN}/")


def merge(parts: list[dict[str, Entry]]) -> Index:
    """The index of the whole checkpoint from the entries of all ranks, in order of rank.

    Raises:
        UsageError: the ranks hold parts that do not make up a tensor.
    """
    tensors: dict[str, Entry] = dict(parts[0])
    for part in parts[1:]:
        for name, entry in part.items():
            # Of a tensor that all ranks hold whole, rank 0's entry counts, because rank 0 writes the state. Another
            # rank may have logged a value that rank 0 did not.
            if entry.cut is None and is_of_rank(name, entry):
                known = tensors.get(name, entry.model_copy(update={"slices": []}))
                tensors[name] = known.model_copy(update={"slices": [*known.slices, *entry.slices]})
    fault = find_fault(tensors)
    if fault:
        raise _no_checkpoint(fault)
    return Index(tensors=dict(sorted(tensors.items())))


def _no_checkpoint(fault: str) -> UsageError:
    return UsageError(
        f"The state of the ranks does not make one checkpoint: {fault}.",
        remedy="Leave state that differs by rank out of the saved state of the module and its callbacks.",
    )


def _part(value: torch.Tensor, rank: int) -> tuple[torch.Tensor, tuple[int, ...], bool]:
    """This rank's part of a tensor, its offset in the whole, and whether this rank keeps it."""
    if not isinstance(value, DTensor):
        return value, (0,) * value.dim(), rank == 0
    if any(placement.is_partial() for placement in value.placements):
        value = value.redistribute(
            placements=[Replicate() if placement.is_partial() else placement for placement in value.placements]
        )
    _, offset = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
    coordinate = value.device_mesh.get_coordinate()
    assert coordinate is not None, "a rank outside of a tensor's mesh cannot capture it"
    replicas = [at for at, placement in zip(coordinate, value.placements, strict=True) if placement.is_replicate()]
    return value.to_local(), tuple(offset), not any(replicas)


def capture_rng() -> dict[str, object]:
    """The state of all four, as values that `state.encode` takes."""
    name, keys, position, has_gauss, gauss = np.random.get_state()
    state: dict[str, object] = {
        "python": random.getstate(),
        "numpy": (name, np.asarray(keys).tobytes(), position, has_gauss, gauss),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state().numpy().tobytes()
    return state


def restore_rng(state: Mapping[str, Any]) -> None:
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


@dataclass(frozen=True)
class CheckpointTarget:
    """The place and the description of a checkpoint.

    Attributes:
        uri: a directory that nobody wrote before.
        settings: part of its id; the same for the same training on as many ranks, whatever the generation.
        provenance: not part of its id.
        sealed: what a module is rebuilt from; a file of the checkpoint, so that its id covers it.
        scratch: local folder for files on their way to the store.
        code: the part of the provenance that depends on the URI and the id.
        on_wait: called with the reason why a save waits for the store.
    """

    store: Store
    uri: str
    settings: dict[str, Any]
    provenance: Mapping[str, object]
    sealed: Mapping[str, object]
    scratch: Path
    code: Callable[[str, str], dict[str, str]] = lambda uri, identity: {}
    on_wait: Callable[[StorageUnavailable], None] = lambda error: None


def save(
    place: CheckpointTarget,
    taken: Capture,
    world_size: int,
    history: list[dict[str, float]],
    group: dist.ProcessGroup | None = None,
) -> Ref:
    """Store one rank's capture together with all others' and seal them; every rank gets a reference to the checkpoint.

    Args:
        history: the logged values so far, one record per logged step; rank 0's is kept.
        group: the ranks, in a group that nothing else uses meanwhile; default: the group that training uses.

    Raises:
        StorageUnavailable: a file could not be written, on whichever rank, for PATIENCE_S.
    """
    writer = place.store.writer(place.uri)
    mine = _try(lambda: _put(writer, taken, place), place.scratch)
    parts = _all(gather(mine, group) if world_size > 1 else [mine])
    work = partial(_seal, writer, taken, parts, place, history)
    answer = _try(lambda: _patiently(work, place), place.scratch) if taken.rank == 0 else {}
    answers = gather(answer, group) if world_size > 1 else [answer]
    return Ref.model_validate(_all(answers[:1])[0])


def read_rank_state(folder: Path, rank: int) -> dict[str, Any] | None:
    """The rank's own state as it was captured; None if the checkpoint has no state of that rank."""
    path = folder / _rank_file(rank)
    if not path.exists():
        return None
    with TensorReader(folder) as reader:
        try:
            get = once_each(lambda name: reader.read(f"{OWN}/{rank}/{name}"))
            return dict(decode(read_json(path), get))
        except UNREADABLE as error:
            raise CorruptError(f"{folder.name}/{path.name} cannot be read: {type_and_text(error)}.") from error


def read_history(folder: Path) -> list[dict[str, float]]:
    """The logged values up to the checkpoint; CorruptError if they cannot be read."""
    try:
        return list(read_json(folder / HISTORY))
    except UNREADABLE as error:
        raise CorruptError(f"{folder.name}/{HISTORY} cannot be read: {type(error).__name__}.") from error


def _put(writer: Writer, taken: Capture, place: CheckpointTarget) -> dict[str, object]:
    taken.staging.wait()

    def put(name: str) -> FileEntry:
        return writer.put_chunks(name, file_chunks(taken.files[name]), place.scratch)

    # File by file: a file that is already stored is not written again.
    entries = [_patiently(partial(put, name), place) for name in sorted(taken.files)]
    entries.append(_patiently(partial(writer.put, _rank_file(taken.rank), dumps(taken.own)), place))
    # What all ranks must say alike of tensors that are cut.
    cuts = {name: entry.to_json() for name, entry in sorted(taken.entries.items()) if entry.cut is not None}
    alike = digest([(name, {**entry, "cut": {**entry["cut"], "key": ""}}) for name, entry in cuts.items()])
    return {
        "files": [entry.to_json() for entry in entries],
        # Of the others rank 0 has what counts, and the longest message takes its room for every rank, on every rank.
        "tensors": {
            name: entry.to_json()
            for name, entry in taken.entries.items()
            if taken.rank and entry.cut is None and is_of_rank(name, entry)
        },
        "cuts": alike,
    }


def _patiently(work: Callable[[], T], place: CheckpointTarget) -> T:
    """`work()`, retried while the store is unavailable. A full disk is reported at once."""

    def wait(error: StorageUnavailable) -> None:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in _FULL:
            raise error
        place.on_wait(error)

    return patiently(work, PATIENCE_S, wait)


def _seal(
    writer: Writer,
    taken: Capture,
    parts: Sequence[Mapping[str, Any]],
    place: CheckpointTarget,
    history: list[dict[str, float]],
) -> dict[str, Any]:
    if any(part["cuts"] != parts[0]["cuts"] for part in parts):
        raise _no_checkpoint("they hold sharded tensors that differ")
    others = [{name: Entry.model_validate(entry) for name, entry in part["tensors"].items()} for part in parts[1:]]
    index = merge([taken.entries, *others])
    entries = [FileEntry.model_validate(entry) for part in parts for entry in part["files"]]
    encoded_index, state = canonical(index.to_json()), dumps(taken.state)
    for name, size in ((INDEX, len(encoded_index)), (STATE, len(state))):
        if size > files.MAX_JSON_BYTES:
            raise UsageError(
                f"A checkpoint of this training would have a file {name} of {size:,} bytes, but a file of more than "
                f"{files.MAX_JSON_BYTES:,} cannot be read.",
                remedy="Shard over fewer ranks (hsdp, or fewer nodes), or keep less in the saved state.",
            )
    entries.append(writer.put(INDEX, encoded_index))
    entries.append(writer.put(STATE, state))
    entries.append(writer.put(HISTORY, dumps(history)))
    entries.append(writer.put(TRAIN, dumps(place.sealed)))
    identity = write_manifest(KIND, place.settings, {}, entries)[1]
    provenance = {**place.provenance, **place.code(place.uri, identity)}
    return writer.seal(KIND, place.settings, provenance, entries).to_json()


def _rank_file(rank: int) -> str:
    return f"rank-{rank}.json"


def _try(work: Callable[[], T], scratch: Path) -> dict[str, T | object]:
    """`{"value": …}`, or `{"error": …}` for an error that other ranks must know."""
    try:
        return {"value": work()}
    except TrainwrightError as error:
        return {"error": error.to_json()}
    except OSError as error:
        reason = error.strerror or error
        failed = StorageUnavailable(
            f"A checkpoint could not be written: {reason} (its files are assembled in {scratch}).",
            remedy="Free space there, then resume.",
        )
        return {"error": failed.to_json()}


def _all(answers: Sequence[Mapping[str, Any]]) -> list[Any]:
    for answer in answers:
        if "error" in answer:
            raise from_json(answer["error"])
    return [answer["value"] for answer in answers]


def gather(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """The values that the ranks gave, by rank; JSON values, infinities and NaN included.

    Args:
        group: the ranks; default: the group that training uses.
    """
    mine = torch.frombuffer(bytearray(json.dumps(value, separators=(",", ":")).encode()), dtype=torch.uint8)
    mine = mine.cuda() if dist.get_backend(group) == "nccl" else mine
    sizes = torch.empty(dist.get_world_size(group), dtype=torch.int64, device=mine.device)
    dist.all_gather_into_tensor(sizes, torch.tensor([len(mine)], device=mine.device), group=group)
    longest = int(sizes.max())
    padded = torch.zeros(longest, dtype=torch.uint8, device=mine.device)
    padded[: len(mine)] = mine
    everyone = torch.empty(len(sizes) * longest, dtype=torch.uint8, device=mine.device)
    dist.all_gather_into_tensor(everyone, padded, group=group)
    parts = everyone.cpu().view(len(sizes), longest)
    return [json.loads(part[:size].numpy().tobytes()) for part, size in zip(parts, sizes.tolist(), strict=True)]


class BackgroundWork:
    """Runs one task in the background at a time.

    Attributes:
        group: the ranks, for collectives of this work alone; None for a single rank.
    """

    def __init__(self) -> None:
        self.group: dist.ProcessGroup | None = None
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._work: Future[None] | None = None

    def meet(self, world_size: int) -> None:
        """Make the group. Collective; call it once the ranks have found each other."""
        # gloo on a GPU too: the exchanged data is on the host, and must not interleave with training's collectives.
        self.group = dist.new_group(backend="gloo", timeout=PATIENCE) if world_size > 1 else None

    @property
    def failed(self) -> bool:
        """Whether the work has failed; `wait` raises the cause."""
        return self._work is not None and self._work.done() and self._work.exception() is not None

    def start(self, work: Callable[[], None]) -> None:
        """Start work after the previous work is done; raises the cause if that failed."""
        self.wait()
        self._work = self._thread.submit(work)

    def wait(self) -> None:
        """Wait until the work is done; raises the cause if it failed."""
        if self._work is not None:
            self._work.result()

    def wait_quietly(self, most_s: float) -> None:
        """Wait at most `most_s` seconds for the work and ignore its outcome: the rank ends with another error."""
        if self._work is not None:
            futures.wait([self._work], most_s)
