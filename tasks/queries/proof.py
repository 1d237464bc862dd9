"""The proof: every byte from a model version back to the raw data's digests, read again and compared.

With keys that a person trusts, the history of an alias is verified, from the alias back to the first signature. Sealed
directories name each other by seals, so the signature of the newest receipt covers everything that the proof reads.
What is left is checked here: that the alias names the newest of the signed receipts, that no signature before it is
gone, and that each statement says what the store says.

The approvals in signed receipts are verified again, too. The release key's signature already covers the receipt. This
shows, without trust in the process that promoted, that an approver's key signed just this alias, candidate, champion
and outcome of the gates. A receipt's seal that a person kept outside of the store shows that no older store was put
back.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_contracts.alias_moves import Approval
from data_contracts.approvals import About, Answer, gates_digest
from data_contracts.errors import CorruptError, UsageError
from data_contracts.foreign_files import parse_json
from data_contracts.handoffs import ModelVersion, Receipt, Ref, SourceFile
from data_contracts.pipeline_spec import SourceSpec
from infra import code_bundle, weights
from infra.approvals import keys_of, payload_of, protections
from infra.models import registry
from infra.records.receipts import chain, read_receipt
from infra.sources.named_places import NO_PLACES, NamedPlaces, digests_now
from infra.store import Manifest, Store, layout
from infra.store.records import corrupt, parsed
from tasks.run.resolve import find_version

if TYPE_CHECKING:
    from infra.signing.keys import PublicKey


# Kinds whose names are digests of their content, each with the function that computes the digest again.
NAMED_BY_CONTENT: dict[str, Callable[[Store, Manifest], None]] = {
    code_bundle.KIND: code_bundle.check_bundle,
    weights.KIND: weights.check_import,
    registry.KIND: registry.check_recipe,
}
_SEAL = re.compile(r"[0-9a-f]{16,64}")
_VOUCHED = {
    "spec": "the run's spec named the key",
    "protection": "the release key signed the protection that has the key",
    "": "nothing vouches for the key: it lay in the store, and neither the spec nor the release key named it",
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

    def to_json(self) -> dict[str, object]:
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
        proof.signed, refs = signed_history(store, version, alias, keys, at_least)
        starts += [(f"receipt of {proof.signed.alias}", ref) for ref in refs]
    elif alias is not None:
        history = registry.history(store, version.name, alias)
        _check_newest(history[-1], version, alias)
        refs = [one.ref for one in history if one.ref]
        starts += [(f"receipt of {alias}", ref) for ref in refs]
        _require_seal(store, version.name, alias, [ref.seal for ref in refs], at_least)
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


def _check_raw(provenance: Mapping[str, Any], proof: Proof, seen: set[str], places: NamedPlaces) -> None:
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


def checked_seal(seal: str) -> str:
    """A receipt's seal, or its first 16 digits or more, as a person gives it; else UsageError."""
    if not _SEAL.fullmatch(seal):
        raise UsageError(
            f"--at-least: {seal!a} is not a receipt's seal.",
            remedy="Give the 64 hexadecimal digits that `prove --key` prints, or at least the first 16.",
        )
    return seal


def _require_seal(store: Store, model: str, alias: str, seals: Sequence[str], at_least: str) -> None:
    """CorruptError if none of the seals of an alias's receipts is the one that a person kept."""
    if at_least and not any(seal.startswith(at_least) for seal in seals):
        raise CorruptError(
            f"{model}@{alias} in {store.uri} has no receipt with the seal {at_least[:16]}…: an older store was "
            "put back, or its history was replaced.",
            remedy="Find the store that had it; do not use this one.",
        )


@dataclass(frozen=True)
class SignedHistory:
    """The signed receipts of an alias.

    Attributes:
        receipts: number of receipts that are signed, the newest among them.
        before: number of older receipts, from the time when no key was configured.
        keys: ids of the keys that signed them, each once, the newest first.
        seal: of the newest receipt; kept elsewhere, it shows later that no older store was put back.
        approvals: of the signed receipts, the newest first, verified again.
    """

    alias: str
    receipts: int
    before: int
    keys: list[str]
    seal: str
    approvals: list[ProvenApproval] = field(default_factory=list)


def signed_history(
    store: Store, version: ModelVersion, alias: str | None, keys: Sequence[PublicKey], at_least: str = ""
) -> tuple[SignedHistory, list[Ref]]:
    """The signed history in which a version stands, and the refs of all receipts of its alias, oldest first.

    Args:
        alias: the alias that was asked for; None: any alias that ever named the version.
        at_least: seal of a receipt that must be in the history; "" for none.

    Raises:
        CorruptError: something is not signed by these keys, not as it was signed, or older than `at_least`.
    """
    if alias is not None:
        return _of_alias(store, version, alias, keys, at_least)
    refused: CorruptError | None = None
    for model, name, _ in registry.aliases(store, ended=True):
        try:
            if model == version.name:
                return _of_alias(store, version, name, keys, at_least, newest=False)
        except CorruptError as error:
            refused = error
    raise refused or CorruptError(
        f"No alias of {version.name} has a signed receipt of version {version.version}.",
        remedy="Only a version that was promoted with a key is signed.",
    )


def _of_alias(
    store: Store, version: ModelVersion, alias: str, keys: Sequence[PublicKey], at_least: str, newest: bool = True
) -> tuple[SignedHistory, list[Ref]]:
    manifests, receipts = _receipts(store, version.name, alias, keys)
    signed = _signed(store, manifests, keys)
    trusted = receipts[: len(signed)]
    if not any(one.candidate == version.ref for one in (trusted[:1] if newest else trusted)):
        raise CorruptError(f"No signed receipt of {version.name}@{alias} names {version.ref.uri}.")
    _refuse_newer(store, version.name, alias, manifests, len(signed), keys)
    seals = [one.seal for one in manifests]
    _require_seal(store, version.name, alias, seals[: len(signed)], at_least)
    before, by = len(manifests) - len(signed), list(dict.fromkeys(signed))
    approved = [_proven(store, one, one.approval) for one in trusted if one.approval is not None]
    return SignedHistory(alias, len(signed), before, by, seals[0], approved), [one.ref for one in reversed(manifests)]


def _receipts(store: Store, model: str, alias: str, keys: Sequence[PublicKey]) -> tuple[list[Manifest], list[Receipt]]:
    """The receipts of an alias, newest first, if the alias's pointer says what the newest one says."""
    path = layout.alias(model, alias)
    found = registry.read_alias(store, model, alias)
    if found is None:
        raise CorruptError(f"{path}, the alias, is missing.", details={"file": path})
    pointer, number = found
    manifests = list(chain(store, Ref.model_validate(pointer.value["receipt"]), store.verify))
    receipts = [read_receipt(store, one) for one in manifests]
    strays = [one for one in receipts if (one.model, one.alias) != (model, alias)]
    foreign = [one for one in manifests if one.uri.rpartition("/")[0] != layout.history(model, alias)]
    if strays or foreign:
        raise CorruptError(f"{path} leads to receipts of another alias.", details={"file": path})
    newest = receipts[0]
    if newest.candidate is None or (newest.candidate.to_json(), newest.version) != (
        pointer.value["model_version"],
        number,
    ):
        raise CorruptError(f"{path} does not name what its newest receipt names.", details={"file": path})
    return manifests, receipts


def _signed(store: Store, manifests: Sequence[Manifest], keys: Sequence[PublicKey]) -> list[str]:
    """The ids of the keys that signed the receipts, newest first, back to the first that was signed."""
    # Loads `cryptography`, which a proof without keys does not need.
    from infra.signing.signatures import verify_receipt

    signers = []
    for place, manifest in enumerate(manifests):
        signed = verify_receipt(store, manifest, keys)
        if signed.number != len(manifests) - place:
            raise CorruptError(
                f"{manifest.uri} was signed as receipt {signed.number} of its alias, and is number "
                f"{len(manifests) - place} now."
            )
        signers.append(signed.key)
        if not signed.previous_signed:
            break
    return signers


def _refuse_newer(
    store: Store, model: str, alias: str, manifests: Sequence[Manifest], count: int, keys: Sequence[PublicKey]
) -> None:
    """CorruptError if a signed receipt is at least as new as the alias's, or older than where the signatures begin."""
    from infra.signing.signatures import signed_numbers

    in_chain = [one.seal for one in manifests]
    for seal, (number, path) in signed_numbers(store, model, alias, keys).items():
        if seal in in_chain[:count]:
            continue
        if seal in in_chain:
            raise CorruptError(f"{path} is signed, but a later receipt says that nothing was.", details={"file": path})
        if number >= len(manifests):
            raise CorruptError(
                f"{path} is the signature of receipt {number} of {model}@{alias}, which is not in its history of "
                f"{len(manifests)}: the alias was moved back, or a process was stopped while it moved the alias.",
                remedy="Look at `trainwright history`; the next signed move settles what a stopped process left.",
                details={"file": path},
            )


@dataclass(frozen=True)
class ProvenApproval:
    """An approval in a signed receipt.

    Attributes:
        key: id of the approver's key; "" if the answer is not signed.
        sentence: what is known of it, for a person.
    """

    version: int | None
    by: str
    key: str
    vouched: str
    sentence: str


def _proven(store: Store, receipt: Receipt, approval: Approval) -> ProvenApproval:
    """The approval in a receipt; CorruptError if a signed answer is of another key, or about something else."""
    who = f"{approval.by} approved version {receipt.version}"
    if approval.signature is None:
        return ProvenApproval(
            receipt.version, approval.by, "", "", f"{who}: the name is as stated, and nobody signed it"
        )
    (identity,) = approval.keys
    key = _key(store, receipt, approval)
    signed = f"signed with the key {identity[:16]}…"
    if key is None:
        said = f"{who}, {signed}, which is not in the store any more: the signature was not verified again"
    else:
        said = f"{who}, {signed}; {_VOUCHED[approval.vouched]}"
        about = _signed_about(store, receipt, approval, key)
        if about is None:
            said += "; an earlier Trainwright signed only the digest of the question"
        elif about.store not in ("", store.uri):
            said += f"; it was given in the store {about.store}, and this is {store.uri}"
    return ProvenApproval(receipt.version, approval.by, identity, approval.vouched, said)


def _key(store: Store, receipt: Receipt, approval: Approval) -> PublicKey | None:
    """The key that a receipt names; those of earlier versions have only its id, and the alias's protections the key."""
    if approval.public_key:
        from infra.signing.keys import parse_public_key

        try:
            return parse_public_key(approval.public_key.encode(), "the approver's key")
        except UsageError as error:
            raise corrupt(_place(receipt), "names a key that cannot be read") from error
    known = [key for one in protections(store, receipt.model, receipt.alias) for key in keys_of(one).values()]
    return next((key for key in known if key.id in approval.keys), None)


def _signed_about(store: Store, receipt: Receipt, approval: Approval, key: PublicKey) -> About | None:
    """What the answer itself says that it is about; CorruptError unless the key signed what the receipt says."""
    assert approval.signature is not None
    payload = payload_of(approval.signature, [key])
    answer = parsed(_place(receipt), lambda data: Answer.from_json(parse_json(data)), payload)
    said = (answer.question, answer.by, answer.via, answer.reason, answer.at, answer.decision)
    kept = (approval.question, approval.by, approval.via, approval.reason, approval.at, "approved")
    if said != kept or approval.keys != [key.id] or answer.signed_bytes != payload:
        raise _differs(receipt)
    # The store may have moved since.
    if answer.about is not None and answer.about.model_copy(update={"store": ""}) != _about(store, receipt):
        raise _differs(receipt)
    return answer.about


def _about(store: Store, receipt: Receipt) -> About:
    assert receipt.candidate is not None
    candidate = registry.model_version(store, receipt.candidate).checkpoint.ref.id
    champion = receipt.champion.id if receipt.champion is not None else ""
    return About(
        model=receipt.model,
        alias=receipt.alias,
        candidate=candidate,
        champion=champion,
        gates=gates_digest(receipt.gates),
    )


def _place(receipt: Receipt) -> str:
    assert receipt.ref is not None
    return f"{receipt.ref.uri}/receipt.json"


def _differs(receipt: Receipt) -> CorruptError:
    place = _place(receipt)
    return CorruptError(f"{place} has a signed approval of something else than it says.", details={"file": place})
