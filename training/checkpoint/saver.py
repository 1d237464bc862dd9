"""Writes a checkpoint from all ranks: each stores its own files; rank 0 adds the index and the state, and seals.

Collective: every rank calls `save` for the same step. A rank that fails reports to the others before it raises, so that
no rank is left waiting in a collective. Nothing here touches the module, so it may run in the background: a thread
writes, hashes, syncs, seals and uploads while training continues. What ranks exchange beside tensors is JSON as bytes,
never a pickle, so that no rank runs what another sent.
"""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError, StorageUnavailable, TrainwrightError, from_json
from data_contracts.handoffs import FileEntry, Ref
from data_contracts.quoting import type_and_text
from infra.store import Store, Writer
from infra.store.lease import patiently
from infra.store.seal import write_manifest
from training.checkpoint.capture import Capture, check_sizes, dumps, merge
from training.checkpoint.codec import decode, file_pieces
from training.checkpoint.reader import INDEX, OWN, STATE, UNREADABLE, Entry, TensorReader, once_each, read_json

KIND = "checkpoint"
HISTORY = "history.json"
TRAIN = "train.json"
# How long a store may be unavailable before the training ends; a retry then starts from the previous checkpoint.
PATIENCE_S = 120.0
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
T = TypeVar("T")


@dataclass(frozen=True)
class Place:
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
    provenance: dict[str, Any]
    sealed: dict[str, Any]
    scratch: Path
    code: Callable[[str, str], dict[str, str]] = lambda uri, identity: {}
    on_wait: Callable[[StorageUnavailable], None] = lambda error: None


def save(
    place: Place,
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
    return Ref.model_validate(_all([share(answer, group) if world_size > 1 else answer])[0])


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


def _put(writer: Writer, taken: Capture, place: Place) -> dict[str, Any]:
    taken.wait()

    def put(name: str) -> FileEntry:
        return writer.put_pieces(name, file_pieces(taken.files[name]), place.scratch)

    # File by file: a file that is already stored is not written again.
    entries = [_patiently(partial(put, name), place) for name in sorted(taken.files)]
    entries.append(_patiently(partial(writer.put, _rank_file(taken.rank), dumps(taken.own)), place))
    return {
        "files": [entry.to_json() for entry in entries],
        "tensors": {name: entry.to_json() for name, entry in taken.entries.items()},
    }


def _patiently(work: Callable[[], T], place: Place) -> T:
    """`work()`, retried while the store is unavailable. A full disk is reported at once."""

    def wait(error: StorageUnavailable) -> None:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in _FULL:
            raise error
        place.on_wait(error)

    return patiently(work, PATIENCE_S, wait)


def _seal(
    writer: Writer, taken: Capture, parts: list[dict[str, Any]], place: Place, history: list[dict[str, float]]
) -> dict[str, Any]:
    index = merge([{name: Entry.model_validate(entry) for name, entry in part["tensors"].items()} for part in parts])
    entries = [FileEntry.model_validate(entry) for part in parts for entry in part["files"]]
    encoded_index, state = canonical(index.to_json()), dumps(taken.state)
    check_sizes(len(encoded_index), len(state))
    entries.append(writer.put(INDEX, encoded_index))
    entries.append(writer.put(STATE, state))
    entries.append(writer.put(HISTORY, dumps(history)))
    entries.append(writer.put(TRAIN, dumps(place.sealed)))
    identity = write_manifest(KIND, place.settings, {}, entries)[1]
    provenance = {**place.provenance, **place.code(place.uri, identity)}
    return writer.seal(KIND, place.settings, provenance, entries).to_json()


def _rank_file(rank: int) -> str:
    return f"rank-{rank}.json"


def _try(work: Callable[[], T], scratch: Path) -> dict[str, Any]:
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


def _all(answers: list[dict[str, Any]]) -> list[Any]:
    for answer in answers:
        if "error" in answer:
            raise from_json(answer["error"])
    return [answer["value"] for answer in answers]


def gather(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """The values that the ranks gave, by rank; JSON values, infinities and NaN included.

    Args:
        group: the ranks; default: the group that training uses.
    """
    mine = _bytes(value, group)
    sizes = torch.empty(dist.get_world_size(group), dtype=torch.int64, device=mine.device)
    dist.all_gather_into_tensor(sizes, torch.tensor([len(mine)], device=mine.device), group=group)
    longest = int(sizes.max())
    padded = torch.zeros(longest, dtype=torch.uint8, device=mine.device)
    padded[: len(mine)] = mine
    everyone = torch.empty(len(sizes) * longest, dtype=torch.uint8, device=mine.device)
    dist.all_gather_into_tensor(everyone, padded, group=group)
    parts = everyone.cpu().view(len(sizes), longest)
    return [_value(part[:size]) for part, size in zip(parts, sizes.tolist(), strict=True)]


def share(value: Any, group: dist.ProcessGroup | None = None) -> Any:
    """The value that the group's first rank gave, on every rank; the others' values are ignored."""
    first = dist.get_rank(group) == 0
    mine = _bytes(value if first else None, group)
    size = torch.tensor([len(mine)], device=mine.device)
    dist.broadcast(size, group=group, group_src=0)
    data = mine if first else torch.empty(int(size), dtype=torch.uint8, device=mine.device)
    dist.broadcast(data, group=group, group_src=0)
    return _value(data.cpu())


def _bytes(value: Any, group: dist.ProcessGroup | None) -> torch.Tensor:
    data = torch.frombuffer(bytearray(json.dumps(value, separators=(",", ":")).encode()), dtype=torch.uint8)
    return data.cuda() if dist.get_backend(group) == "nccl" else data


def _value(data: torch.Tensor) -> Any:
    return json.loads(data.numpy().tobytes())


# How long a rank waits for the slowest rank's part to be stored. torchrun notices a rank that died, not this code.
PATIENCE = timedelta(hours=2)


class BackgroundWork:
    """Runs one piece of work in the background at a time.

    Attributes:
        group: the ranks, for collectives of this work alone; None for a single rank.
    """

    def __init__(self) -> None:
        self.group: dist.ProcessGroup | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def meet(self, world_size: int) -> None:
        """Make the group. Collective; call it once the ranks have found each other."""
        # gloo on a GPU too: the exchanged data is on the host, and must not interleave with training's collectives.
        self.group = dist.new_group(backend="gloo", timeout=PATIENCE) if world_size > 1 else None

    @property
    def failed(self) -> bool:
        """Whether the work has failed; `wait` raises the cause."""
        return self._error is not None

    def start(self, work: Callable[[], None]) -> None:
        """Start work after the previous work is done; raises the cause if that failed."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(work,), name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the work is done; raises the cause if it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error

    def settle(self, most_s: float) -> None:
        """Wait at most `most_s` seconds for the work and ignore its outcome: the rank ends with another error."""
        if self._thread is not None:
            self._thread.join(most_s)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # raised again in the training thread
            self._error = error
