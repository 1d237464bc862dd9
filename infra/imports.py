"""Weights from outside: safetensors with the digest that the spec names, sealed once under `imports/`.

What is there under a digest is never fetched again, so the place it came from may move or go. Only the head of a file
is parsed, and nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import tempfile
from pathlib import Path
from typing import Any

from blake3 import blake3
from safetensors import SafetensorError, safe_open

from data_contracts.canonical import KEY_LENGTH
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Ref
from data_contracts.spec import InitSpec, SourceSpec
from infra.digests import hash_stream
from infra.settings import on_this_machine, state_folder, writing
from infra.sources.places import Found, Place, place_of
from infra.store import Store, layout

KIND = "import"
ENDING = ".safetensors"
ONE = f"model{ENDING}"


def import_weights(store: Store, wanted: InitSpec, root: Path, provenance: dict[str, Any], *, field: str) -> Ref:
    """The sealed import of the weights that `wanted` names, made if there is none that is whole.

    A file is stored as `model.safetensors`, whatever it was called, and a folder's files under their names: the same
    content is the same import wherever it lies.

    Args:
        root: the spec's folder, from which a path is taken.
        field: the field of the spec, for errors.

    Raises:
        UsageError: there is no such file, or one is no safetensors.
        CorruptError: the bytes are not those of the digest.
        StorageUnavailable: the S3 server does not answer.
    """
    assert wanted.digest is not None, "weights from outside have a digest"
    kind, _, expected = wanted.digest.partition(":")
    name = f"{kind}-{expected[:KEY_LENGTH]}"
    for n in itertools.count():
        uri = layout.imported(f"{name}-{n}" if n else name)
        if not store.claim(uri):
            continue  # deleted, or about to be: it is imported beside
        try:
            return store.verify(uri).ref
        except CorruptError as error:
            store.remove(uri, why=f"imported again, because {error.message}", by="import")
        except FileNotFoundError:
            break
    place = place_of(SourceSpec(uri=wanted.weights, storage_options=wanted.storage_options), root)
    files = _find(place, wanted.weights, field)
    with tempfile.TemporaryDirectory(prefix="import-", dir=state_folder()) as folder:
        copies = [(name, *_fetch(place, file, Path(folder) / name, kind)) for name, file in files]
        found = copies[0][2] if wanted.weights.endswith(ENDING) else _of_list(copies, kind)
        if found != expected:
            raise CorruptError(
                f"{field}: {wanted.weights} has the digest {kind}:{found}, not the {expected[:16]}… that is named.",
                remedy="Name the digest of the bytes that are meant, or fetch them again.",
            )
        for name, copy, _ in copies:
            _check_form(copy, f"{field}: {wanted.weights}" + ("" if name == ONE else f"/{name}"))
        writer = store.writer(uri, afresh=True)
        entries = [writer.put(name, copy) for name, copy, _ in copies]
    origin = {"from": wanted.weights, "digest": wanted.digest}
    return writer.seal(KIND, {}, {**provenance, "parents": [], "origin": origin}, entries)


def _find(place: Place, weights: str, field: str) -> list[tuple[str, Found]]:
    """The files by the names under which they are stored, in the order of these."""
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


def _fetch(place: Place, file: Found, copy: Path, kind: str) -> tuple[Path, str]:
    """A copy of the file on this machine, and its digest."""
    hasher = hashlib.sha256() if kind == "sha256" else blake3()
    with on_this_machine(copy.parent):
        target = copy.open("wb", buffering=0)
    with target, contextlib.closing(place.open(file.uri)) as stream:
        hash_stream(stream, hasher.update, writing(target, copy.parent))
    return copy, hasher.hexdigest()


def _of_list(copies: list[tuple[str, Path, str]], kind: str) -> str:
    """The digest over a folder: of the lines that `sha256sum *.safetensors` prints there."""
    lines = "".join(f"{digest}  {name}\n" for name, _, digest in copies).encode()
    return (hashlib.sha256(lines) if kind == "sha256" else blake3(lines)).hexdigest()


def _check_form(path: Path, what: str) -> None:
    try:
        with safe_open(path, framework="numpy") as held:
            names = list(held.keys())
    except (OSError, SafetensorError) as error:
        raise UsageError(
            f"{what} is no safetensors file ({error}).", remedy="Convert it with safetensors.torch.save_file."
        ) from error
    if not names:
        raise UsageError(f"{what} has no tensors.", remedy="Name a file with weights.")
