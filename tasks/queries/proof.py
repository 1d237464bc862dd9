"""The proof: every byte from a model version back to the raw data's digests, read again and compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import ModelVersion, Receipt, Ref, SourceFile
from data_contracts.pipeline_spec import SourceSpec
from infra import code_bundle, weights
from infra.models import registry
from infra.sources.named_places import NO_PLACES, NamedPlaces, digests_now
from infra.store import Manifest, Store
from tasks.queries.kept_seal import require_seal
from tasks.run.resolve import find_version

if TYPE_CHECKING:
    from infra.signing.keys import PublicKey
    from tasks.queries.signed import SignedHistory

# Kinds whose names are digests of their content, each with the function that computes the digest again.
NAMED_BY_CONTENT: dict[str, Callable[[Store, Manifest], None]] = {
    code_bundle.KIND: code_bundle.check_bundle,
    weights.KIND: weights.check_import,
    registry.KIND: registry.check_recipe,
}


@dataclass(frozen=True)
class Link:
    """One link of the chain: a sealed directory whose bytes were read again."""

    kind: str
    uri: str
    id: str
    files: int
    bytes: int


@dataclass(frozen=True)
class Environment:
    """The packages that code ran with: the digest and the number of those that its user asked for, with their needs."""

    digest: str
    packages: int
    installed: int


@dataclass
class Proof:
    """The chain of a model version.

    Attributes:
        gone: raw files that no longer exist; unopened: those in a place that only the store names.
        external: whether the training used data that we never saw.
        skipped: checkpoint → the samples (from, to) that it did not see, because a training with them diverged.
        environments: bundle of code → the packages that it ran with, if they are not Trainwright's own.
        signed: the signatures that were verified; None if no keys were given.
    """

    name: str
    version: int
    alias: str | None
    links: list[Link] = field(default_factory=list)
    raw_checked: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    unopened: list[str] = field(default_factory=list)
    external: bool = False
    skipped: dict[str, list[list[int]]] = field(default_factory=dict)
    environments: dict[str, Environment] = field(default_factory=dict)
    signed: SignedHistory | None = None

    def to_json(self) -> dict[str, Any]:
        """The proof as objects that JSON can hold; `signed` only if signatures were verified."""
        return {name: value for name, value in asdict(self).items() if name != "signed" or value is not None}


def prove(
    store: Store,
    name: str,
    on_link: Callable[[Link], None] = lambda _: None,
    *,
    keys: Sequence[PublicKey] = (),
    at_least: str = "",
    places: NamedPlaces = NO_PLACES,
) -> Proof:
    """Read every byte again, from the model version back to the raw files.

    Args:
        keys: public keys, one of which must have signed each receipt since the first that was signed; none: signatures
            are not verified.
        at_least: seal of a receipt that must be in the alias's history; "" for none.
        places: where the reader says that the raw data lies.

    Raises:
        CorruptError: a byte differs anywhere, or is not what was signed; the file is named.
        UsageError: there is no such model.
    """
    version, alias = find_version(store, name)
    proof = Proof(version.name, version.version, alias)
    starts: list[tuple[str, Ref]] = [("alias", version.ref)]
    if keys:
        from tasks.queries.signed import signed_history

        proof.signed, refs = signed_history(store, version, alias, keys, at_least)
        starts += [(f"receipt of {proof.signed.alias}", ref) for ref in refs]
    elif alias is not None:
        history = registry.history(store, version.name, alias)
        _check_newest(history[-1], version, alias)
        refs = [one.ref for one in history if one.ref]
        starts += [(f"receipt of {alias}", ref) for ref in refs]
        require_seal(store, version.name, alias, [ref.seal for ref in refs], at_least)
    elif at_least:
        raise UsageError("--at-least needs an alias or --key.", remedy="Name NAME@ALIAS.")
    _read_all(store, starts, proof, on_link, places)
    return proof


def _check_newest(newest: Receipt, version: ModelVersion, alias: str) -> None:
    if newest.candidate not in (None, version.ref):
        raise CorruptError(f"{version.ref.uri} is not the version that the newest receipt of {alias} names.")
    if newest.version != version.version:
        raise CorruptError(
            f"{version.name}@{alias} points to version {version.version}, but its newest receipt is of version "
            f"{newest.version}."
        )


def _read_all(
    store: Store,
    starts: Iterable[tuple[str, Ref]],
    proof: Proof,
    on_link: Callable[[Link], None],
    places: NamedPlaces,
) -> None:
    """Read everything that the starts lead to, and enter it in the proof."""
    seen: dict[str, Ref] = {}
    seen_raw: set[str] = set()
    waiting = deque(starts)
    while waiting:
        pointed_by, ref = waiting.popleft()
        if seen.get(ref.uri) == ref:  # another reference to the same place is read, and found to differ
            continue
        seen[ref.uri] = ref
        manifest = read_again(store, ref, pointed_by)
        link = Link(manifest.kind, ref.uri, ref.id, len(manifest.files), sum(file.bytes for file in manifest.files))
        proof.links.append(link)
        if manifest.settings.get("skipped"):
            proof.skipped[ref.uri] = manifest.settings["skipped"]
        if manifest.kind == code_bundle.KIND and (found := code_bundle.packages_in(store, manifest)) is not None:
            proof.environments[ref.uri] = Environment(found.digest, len(found.sealed), len(found.install))
        on_link(link)
        waiting += [(ref.uri, parent) for parent in _made_from(manifest)]
        _check_raw(manifest.provenance, proof, seen_raw, places)
    proof.external = not any(link.kind == "dataset" for link in proof.links)


def read_again(store: Store, ref: Ref, pointed_by: str) -> Manifest:
    """The manifest of a sealed directory; reads every byte again, and computes its name again if that is a digest."""
    try:
        manifest = store.verify(ref)
    except FileNotFoundError as error:
        raise CorruptError(f"{ref.uri}, which {pointed_by} points to, is missing.") from error
    if manifest.kind in NAMED_BY_CONTENT:
        NAMED_BY_CONTENT[manifest.kind](store, manifest)
    return manifest


def _made_from(manifest: Manifest) -> list[Ref]:
    named = [(manifest.provenance.get("code") or {}).get("ref"), manifest.provenance.get("recipe")]
    return [*manifest.parents, *(Ref.model_validate(one) for one in named if one)]


def _check_raw(provenance: dict[str, Any], proof: Proof, seen: set[str], places: NamedPlaces) -> None:
    sources = [SourceSpec.model_validate(one) for one in provenance.get("raw_sources", [])]
    files = [SourceFile.model_validate(one) for one in provenance.get("raw", [])]
    unseen = {name: file for file in files if (name := _name_of(file)) not in seen}
    seen.update(unseen)
    unopened = [name for name, file in unseen.items() if not places.include(file, sources[file.source])]
    proof.unopened += unopened
    for name in unopened:
        del unseen[name]
    digests = digests_now(list(unseen.values()), sources, Path(provenance.get("raw_root", "")), places)
    for (name, file), digest in zip(unseen.items(), digests, strict=True):
        if digest is None:
            proof.gone.append(name)
        elif digest != file.blake3:
            raise CorruptError(
                f"The raw file {name} has changed: BLAKE3 {digest[:16]}…, but {file.blake3[:16]}… was validated.",
                remedy="Restore the file, or run again to train on what it is now.",
            )
        else:
            proof.raw_checked.append(name)


def _name_of(file: SourceFile) -> str:
    return f"{file.uri}@{file.rev}" if file.rev else file.uri
