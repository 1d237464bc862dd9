"""Writes a checkpoint from all ranks: each stores its own files; rank 0 adds the index and the state, and seals.

Collective: every rank calls `save` for the same step. A rank that fails reports to the others before it raises, so that
no rank is left waiting in a collective. Nothing here touches the module, so it may run in the background.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from data_contracts.canonical import canonical
from data_contracts.errors import CorruptError, StorageUnavailable, TrainwrightError, from_json
from data_contracts.handoffs import FileEntry, Ref
from data_contracts.quoting import type_and_text
from infra.store import Store, Writer
from infra.store.lease import patiently
from infra.store.seal import write_manifest
from training.checkpoint.capture import Capture, merge
from training.checkpoint.files import file_pieces
from training.checkpoint.limits import check_sizes, dumps
from training.checkpoint.rank_exchange import gather, share
from training.checkpoint.state import decode
from training.checkpoint.tensors import INDEX, OWN, STATE, UNREADABLE, Entry, TensorReader, once_each, read_json

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
