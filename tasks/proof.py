"""The proof: every byte from a model version back to the raw data's digests, read again and compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import ModelVersion, Ref, SourceFile
from data_contracts.spec import SourceSpec
from infra import registry
from infra.sources import Places, digest_now
from infra.store import Manifest, Store


@dataclass(frozen=True)
class Link:
    """One joint of the chain: a sealed directory whose bytes were read again."""

    kind: str
    uri: str
    id: str
    files: int
    bytes: int


@dataclass
class Proof:
    """The chain of a model version.

    Attributes:
        gone: raw files that are no longer there; external: whether data is that we never saw.
        skipped: checkpoint → the samples (from, to) that it did not see, because a training with them diverged.
    """

    name: str
    version: int
    alias: str | None
    links: list[Link] = field(default_factory=list)
    raw_checked: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    external: bool = False
    skipped: dict[str, list[list[int]]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The proof as JSON-able objects."""
        return asdict(self)


def existing_version(store: Store, model: str, number: int) -> ModelVersion:
    """A version of a model by its number; UsageError if there is none."""
    try:
        return registry.read_version(store, model, number)
    except FileNotFoundError as error:
        raise UsageError(
            f"{model} has no version {number} in {store.uri}.", remedy="See `trainwright status` and `show`."
        ) from error


def find_version(store: Store, name: str) -> tuple[ModelVersion, str | None]:
    """The version that `model`, `model@alias` or `model@3` names (default alias: champion), and the alias."""
    model, _, which = name.partition("@")
    if which.isdigit():
        return existing_version(store, model, int(which)), None
    alias = which or "champion"
    found = registry.read_alias(store, model, alias)
    if found is None:
        raise UsageError(f"There is no {model}@{alias} in {store.uri}.", remedy="See `trainwright status`.")
    return registry.model_version(store, Ref.model_validate(found[0].value["model_version"])), alias


def prove(store: Store, name: str, on_link: Callable[[Link], None] = lambda _: None) -> Proof:
    """Read every byte again, from the model version back to the raw files.

    Raises:
        CorruptError: a byte differs anywhere; the file is named.
        UsageError: there is no such model.
    """
    version, alias = find_version(store, name)
    proof = Proof(version.name, version.version, alias)
    starts: list[tuple[str, Ref]] = [("alias", version.ref)]
    if alias is not None:
        history = registry.history(store, version.name, alias)
        starts += [(f"receipt of {alias}", one.ref) for one in history if one.ref]
        if history[-1].version != version.version:
            raise CorruptError(
                f"{version.name}@{alias} points to version {version.version}, but its newest receipt is of version "
                f"{history[-1].version}."
            )
    seen: set[str] = set()
    waiting = list(starts)
    while waiting:
        pointed_by, ref = waiting.pop(0)
        if ref.uri in seen:
            continue
        seen.add(ref.uri)
        manifest = _read_again(store, ref, pointed_by)
        link = Link(manifest.kind, ref.uri, ref.id, len(manifest.files), sum(file.bytes for file in manifest.files))
        proof.links.append(link)
        if manifest.settings.get("skipped"):
            proof.skipped[ref.uri] = manifest.settings["skipped"]
        on_link(link)
        waiting += [(ref.uri, parent) for parent in _parents(manifest)]
        _check_raw(manifest.provenance, proof)
    proof.external = not any(link.kind == "dataset" for link in proof.links)
    return proof


def _read_again(store: Store, ref: Ref, pointed_by: str) -> Manifest:
    try:
        return store.verify(ref)
    except FileNotFoundError as error:
        raise CorruptError(f"{ref.uri}, which {pointed_by} points to, is gone.") from error


def _parents(manifest: Manifest) -> list[Ref]:
    parents = [Ref.model_validate(parent) for parent in manifest.provenance.get("parents", [])]
    code = (manifest.provenance.get("code") or {}).get("ref")
    return [*parents, Ref.model_validate(code)] if code else parents


def _check_raw(provenance: dict[str, Any], proof: Proof) -> None:
    sources = [SourceSpec.model_validate(one) for one in provenance.get("raw_sources", [])]
    places = Places(sources, Path(provenance.get("raw_root", "")))
    for one in provenance.get("raw", []):
        file = SourceFile.model_validate(one)
        name = f"{file.uri}@{file.rev}" if file.rev else file.uri
        if name in proof.raw_checked or name in proof.gone:
            continue
        digest = digest_now(file, places)
        if digest is None:
            proof.gone.append(name)
        elif digest != file.blake3:
            raise CorruptError(
                f"The raw file {name} has changed: BLAKE3 {digest[:16]}…, but {file.blake3[:16]}… was validated.",
                remedy="Restore the file, or run again to train on what it is now.",
            )
        else:
            proof.raw_checked.append(name)
