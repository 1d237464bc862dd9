"""Weights from outside: safetensors with the digest that the spec names, sealed once under `imports/`.

An import with a known digest is never fetched again, so its origin may move or disappear. Only the header of a file is
parsed, and nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import logging
from pathlib import Path
from typing import Any

from blake3 import blake3
from safetensors import SafetensorError, safe_open

from data_contracts.canonical import KEY_LENGTH
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Ref
from data_contracts.pipeline_spec import InitSpec, SourceSpec
from infra import scratch
from infra.files.digests import hash_stream
from infra.machine.settings import on_this_machine, state_folder, writing
from infra.sources.places import Place, SourceEntry, place_of
from infra.store import Manifest, Store, layout
from infra.store.store import sha256_as_sealed

KIND = "import"
ENDING = ".safetensors"
ONE = f"model{ENDING}"
log = logging.getLogger("trainwright")


def import_weights(store: Store, wanted: InitSpec, root: Path, provenance: dict[str, Any], *, field: str) -> Ref:
    """The sealed import of the weights that `wanted` names; imported if there is no intact one.

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
    assert wanted.digest is not None, "weights from outside have a digest"
    kind, _, expected = wanted.digest.partition(":")
    name = f"{kind}-{expected[:KEY_LENGTH]}"
    for n in itertools.count():
        uri = layout.imported(f"{name}-{n}" if n else name)
        if not store.claim(uri):
            continue  # deleted or about to be, so it is imported under the next name
        try:
            import_ = store.verify(uri)
            check_import(store, import_)
            return import_.ref
        except CorruptError as error:
            log.warning("The weights %s are imported again, because the stored copy is damaged: %s", uri, error.message)
        except FileNotFoundError:
            break
    place = place_of(SourceSpec(uri=wanted.weights, storage_options=wanted.storage_options), root)
    files = _find(place, wanted.weights, field)
    with scratch.make("import", root=state_folder()) as folder:
        copies = [(name, *_fetch(place, file, folder.path / name, kind)) for name, file in files]
        listed = [(name, digest) for name, _, digest in copies]
        found = copies[0][2] if wanted.weights.endswith(ENDING) else _of_list(listed, kind)
        if found != expected:
            raise CorruptError(
                f"{field}: {wanted.weights} has the digest {kind}:{found}, not the {expected[:16]}… that is named.",
                remedy="Correct the digest, or fetch the weights again.",
            )
        for name, copy, _ in copies:
            _check_form(copy, f"{field}: {wanted.weights}" + ("" if name == ONE else f"/{name}"))
        writer = store.writer(uri, afresh=True)
        entries = [writer.put(name, copy) for name, copy, _ in copies]
    origin = {"from": wanted.weights, "digest": wanted.digest}
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
    try:
        with safe_open(path, framework="numpy") as held:
            names = list(held.keys())
    except (OSError, SafetensorError) as error:
        raise UsageError(
            f"{what} is not a safetensors file ({error}).", remedy="Convert it with safetensors.torch.save_file."
        ) from error
    if not names:
        raise UsageError(f"{what} has no tensors.", remedy="Name a file with weights.")
