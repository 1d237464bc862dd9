"""When and what is signed: the inputs of a run when they are resolved, and the receipt of an alias's move.

The spec names the key (`promote.sign`), or `TRAINWRIGHT_SIGNING_KEY` does. A run that waits, or was cut off, reads its
spec from the store when it continues. Without the signature of its inputs, whoever can write to the store could let it
continue with other gates, other approvers or none.

    aliases/M/history/A/7.receipt.dsse      the receipt of the move, by its seal, and what it says
    aliases/M/history/A/7.provenance.dsse   SLSA provenance of the training behind the version that the alias then
                                            names: what went in, by whom, when
    aliases/M/history/A/7.model.sig         the files of its checkpoint, for OpenSSF's `model_signing verify key`

What is signed are in-toto statements, each a pure function of what is sealed. Signatures are written before the alias
moves, so it never names a receipt that lacks one. If the move then loses, they are deleted. A verifier computes each
statement again from the store, and accepts only the signature of exactly that.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_contracts.canonical import canonical, digest
from data_contracts.errors import CorruptError, UsageError
from data_contracts.foreign_files import parse_json
from data_contracts.handoffs import Checkpoint, Receipt, Ref
from data_contracts.resolved import Resolved
from infra.processes.environment import SIGNING_KEY
from infra.records.receipts import chain, is_signed, pointed_at, read_receipt
from infra.signing.keys import (
    IN_TOTO,
    PublicKey,
    Signed,
    SigningKey,
    load_signing_key,
    sign_bytes,
    unverified_payload,
    verify,
)
from infra.store import Manifest, Store, layout
from infra.store.records import corrupt, parsed
from infra.store.seal import read_manifest
from infra.store.store import sha256_as_sealed

PAYLOAD_TYPE = "application/vnd.trainwright.inputs+json"


def configured_key(named: str | None = None, root: Path = Path()) -> SigningKey | None:
    """The key to sign with; None if none is configured.

    Args:
        named: `promote.sign` of the spec in the folder `root`, if there is a spec that names a key.

    Raises:
        UsageError: the key cannot be used, or the spec and the variable name two keys.
    """
    variable = f"env:{SIGNING_KEY}" if os.environ.get(SIGNING_KEY, "").strip() else None
    if named is None and variable is None:
        return None
    if named is None:
        return _for_models(load_signing_key(f"env:{SIGNING_KEY}", Path.cwd(), SIGNING_KEY), SIGNING_KEY)
    key = _for_models(load_signing_key(named, root, "promote.sign"), "promote.sign")
    if variable is not None and named != variable:
        other = load_signing_key(variable, Path.cwd(), SIGNING_KEY)
        if other.public.id != key.public.id:
            raise UsageError(
                f"Two signers: promote.sign names the key {key.public.id[:16]}…, {SIGNING_KEY} the key "
                f"{other.public.id[:16]}….",
                remedy=f"Unset {SIGNING_KEY}, or leave promote.sign out.",
            )
    return key


def _for_models(key: SigningKey, what: str) -> SigningKey:
    if not key.public.is_elliptic:
        raise UsageError(
            f"{what} names a key with Ed25519, and OpenSSF's format for a model's files has no such keys.",
            remedy="Use an ECDSA key on P-256: `trainwright key new DIR`.",
        )
    return key


def sign_inputs(store: Store, resolved: Resolved, key: SigningKey) -> None:
    """Sign the inputs that this process has resolved and stored; never those that were found in the store."""
    path = layout.inputs_signature(resolved.run_id)
    store.create_once(path, sign_bytes(_payload(resolved), PAYLOAD_TYPE, key))


def refuse_unsigned_inputs(store: Store, resolved: Resolved, key: SigningKey) -> None:
    """Refuse to continue a run whose inputs this key did not sign when they were resolved.

    Raises:
        UsageError: they are not signed, because there was no key, or the signature was deleted.
        CorruptError: they are not what was signed.
    """
    path = layout.inputs_signature(resolved.run_id)
    try:
        found = verify(store.read(path), PAYLOAD_TYPE, [key.public], path)
    except FileNotFoundError as error:
        raise UsageError(
            f"The inputs of the run {resolved.run_id} were not signed with a key when they were resolved, so this key "
            "does not promote what they ask for.",
            remedy="Begin a new run with the key: `trainwright run SPEC` reuses everything that is sealed.",
        ) from error
    if found.payload != _payload(resolved):
        raise CorruptError(
            f"{layout.resolved(resolved.run_id)} is not what was signed.",
            remedy="Find out who changed it, and begin a new run.",
            details={"file": path},
        )


def _payload(resolved: Resolved) -> bytes:
    return canonical({"run_id": resolved.run_id, "digest": digest(resolved.to_json())})


def key_of_move(store: Store, newest: Ref | None, what: str, key: SigningKey | None) -> SigningKey | None:
    """The key that signs the next move of an alias; None if no move of it is signed.

    Args:
        newest: the alias's newest receipt; `what`: the alias, for errors.
        key: default: the key that `TRAINWRIGHT_SIGNING_KEY` names.

    Raises:
        UsageError: the newest receipt is signed, and there is no key for the next one.
    """
    key = configured_key() if key is None else key
    if key is None and is_signed(store, newest):
        raise UsageError(
            f"{what} has signed receipts, and no key is configured to sign the next one.",
            remedy=f"Name the key: {SIGNING_KEY}=FILE, or promote.sign in the spec.",
        )
    return key


STATEMENT = "https://in-toto.io/Statement/v1"
RECEIPT = "urn:trainwright:receipt:v1"
PROVENANCE = "https://slsa.dev/provenance/v1"
MODEL_FILES = "https://model_signing/signature/v1.0"
BUILD, BUILDER = "urn:trainwright:training:v1", "urn:trainwright:conductor:v1"
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"


def receipt_statement(manifest: Manifest, receipt: Receipt, *, number: int, previous_signed: bool) -> bytes:
    """The statement about a receipt.

    Args:
        number: of the receipt in its alias's history, from 1.
        previous_signed: whether the receipt before it is signed, so that its signature cannot be taken away.
    """
    about = manifest.provenance
    predicate = {
        "model": receipt.model,
        "alias": receipt.alias,
        "number": number,
        "decision": receipt.decision,
        "version": receipt.version,
        "modelVersion": _json(receipt.candidate),
        "evaluation": _json(receipt.evaluation),
        "champion": _json(receipt.champion),
        "previous": about.get("previous_receipt"),
        "previousSigned": previous_signed,
        "sentence": receipt.sentence,
        "actor": about.get("actor"),
        "trigger": about.get("trigger"),
        "runId": about.get("run_id"),
        "finished": about.get("finished"),
        "code": about.get("code"),
    }
    return _statement(manifest.ref, RECEIPT, predicate)


def training_statement(store: Store, checkpoint: Manifest) -> bytes:
    """SLSA provenance v1 of a checkpoint: dataset, code and raw files as dependencies, with their digests."""
    about = checkpoint.provenance
    settings = next((file.blake3 for file in checkpoint.files if file.path == "train.json"), None)
    definition = {
        "buildType": BUILD,
        "externalParameters": {
            "specDigest": about.get("spec_digest"),
            "settings": {"name": "train.json", "digest": {"blake3": settings}} if settings else None,
        },
        "internalParameters": {
            "training": about.get("training"),
            "generation": about.get("generation"),
            "step": checkpoint.settings.get("step"),
            "worldSize": checkpoint.settings.get("world_size"),
            "lockDigest": about.get("lock_digest"),
            "versions": about.get("versions"),
        },
        "resolvedDependencies": _dependencies(store, checkpoint),
    }
    details = {
        "builder": {"id": BUILDER},
        "metadata": {
            "invocationId": about.get("run_id", ""),
            **{
                name: about[key] for name, key in (("startedOn", "started"), ("finishedOn", "finished")) if key in about
            },
        },
    }
    return _statement(checkpoint.ref, PROVENANCE, {"buildDefinition": definition, "runDetails": details})


def files_statement(checkpoint: Manifest, digests: Mapping[str, str]) -> bytes:
    """The files of a checkpoint, its manifest among them, as `model_signing sign key` lists them.

    Args:
        digests: name of each file → SHA-256 in hexadecimal, which is all that `model_signing verify key` compares.
    """
    resources = [{"name": name, "algorithm": "sha256", "digest": digests[name]} for name in sorted(digests)]
    root = hashlib.sha256(b"".join(bytes.fromhex(digests[name]) for name in sorted(digests))).hexdigest()
    predicate = {
        "serialization": {"method": "files", "hash_type": "sha256", "allow_symlinks": False},
        "resources": resources,
    }
    subject = {"name": checkpoint.uri.rpartition("/")[2], "digest": {"sha256": root}}
    return canonical({"_type": STATEMENT, "subject": [subject], "predicateType": MODEL_FILES, "predicate": predicate})


def _statement(subject: Ref, predicate_type: str, predicate: Mapping[str, object]) -> bytes:
    named = [{"name": subject.uri, "digest": {"sha256": subject.seal}}]
    return canonical(
        {"_type": STATEMENT, "subject": named, "predicateType": predicate_type, "predicate": _without_none(predicate)}
    )


def _dependencies(store: Store, checkpoint: Manifest) -> list[dict[str, Any]]:
    """The sealed directories that the training's input was made of, and the raw files, each with its digest."""
    found: dict[str, dict[str, Any]] = {}
    waiting = deque([checkpoint])
    while waiting:
        manifest = waiting.popleft()
        about, refs = manifest.provenance, manifest.parents
        code = about.get("code") or {}
        refs += [Ref.model_validate(code["ref"])] if code.get("ref") else []
        for ref in refs:
            if ref.uri not in found:
                found[ref.uri] = {"uri": ref.uri, "digest": {"sha256": ref.seal}}
                waiting.append(pointed_at(store.manifest, ref))
            if code.get("ref") and code["ref"]["uri"] == ref.uri and code.get("commit") and not code.get("dirty"):
                found[ref.uri]["digest"]["gitCommit"] = code["commit"]
        for file in about.get("raw", []):
            name = f"{file['uri']}@{file['rev']}" if file.get("rev") else file["uri"]
            found.setdefault(name, {"uri": name, "digest": {"blake3": file["blake3"]}})
    return sorted(found.values(), key=lambda one: str(one["uri"]))


def _json(ref: Ref | None) -> dict[str, object] | None:
    return None if ref is None else ref.to_json()


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(one) for name, one in value.items() if one is not None}
    return value


@dataclass(frozen=True)
class SignedReceipt:
    """A receipt whose signatures hold.

    Attributes:
        number: in its alias's history, from 1.
        previous_signed: whether the receipt before it is signed, too.
        key: id of the signer's key.
    """

    number: int
    previous_signed: bool
    key: str


def sign_receipt(store: Store, receipt: Ref, key: SigningKey) -> None:
    """Write the signatures of a receipt that an alias is about to name.

    Raises:
        CorruptError: the receipts before it are not as they were signed, or something else is in a signature's place.
    """
    manifest = store.manifest(receipt)
    number, previous_signed = _place_in_chain(store, manifest, key.public)
    statements = _statements(store, manifest, number, previous_signed)
    checkpoint = _checkpoint(store, manifest, read_receipt(store, manifest))
    digests = {entry.path: sha256_as_sealed(store, checkpoint, entry) for entry in checkpoint.files}
    digests[layout.MANIFEST] = _manifest_sha256(store, checkpoint)
    statements = {"model.sig": files_statement(checkpoint, digests), **statements}
    for what, payload in statements.items():
        path = layout.signature(receipt.uri, what)
        if store.create_once(path, _file(what, sign_bytes(payload, IN_TOTO, key), key.public)):
            continue
        if _verified(store, path, what, [key.public]).payload != payload:  # not ours with a lost answer
            raise corrupt(path, "is the signature of something else than is stored")


def withdraw(store: Store, receipt: Ref) -> None:
    """Delete the signatures of a receipt whose move lost: it must not pass for one that was made."""
    for what in layout.SIGNATURES:
        store.forget(layout.signature(receipt.uri, what))


def withdraw_others(store: Store, receipt: Ref) -> None:
    """Delete the signatures of other receipts that follow the same one as `receipt`, which the alias names now.

    What is left of them makes no proof of the next move fail.

    Their moves lost, or never came, because their process was killed between the signature and the move.
    """
    manifest = store.manifest(receipt)
    folder, _, mine = receipt.uri.rpartition("/")
    previous = manifest.provenance.get("previous_receipt")
    first = int(previous["uri"].rpartition("/")[2]) + 1 if previous else 0
    for name in store.list(folder):
        number = name.removesuffix(".receipt.dsse")
        if number in (name, mine) or not number.isdecimal() or int(number) < first:
            continue
        with contextlib.suppress(FileNotFoundError, CorruptError, ValueError, LookupError, TypeError):
            path = f"{folder}/{name}"
            about = parse_json(unverified_payload(store.read(path), path)[0])["predicate"]
            if about.get("previous") == previous:
                withdraw(store, Ref(uri=f"{folder}/{number}", id="", seal=""))


def verify_receipt(store: Store, manifest: Manifest, keys: Sequence[PublicKey]) -> SignedReceipt:
    """Verify the signatures of a receipt against what the store holds.

    Raises:
        CorruptError: one is missing, of another key, or of something else than is stored.
    """
    path = layout.signature(manifest.uri, "receipt.dsse")
    payload, _ = unverified_payload(_read(store, path, manifest), path)
    number, previous_signed = _said(path, payload)
    receipt = read_receipt(store, manifest)
    files = layout.signature(manifest.uri, "model.sig")
    bundle = _verified(store, files, "model.sig", keys)
    _check_files(store, files, bundle.payload, _checkpoint(store, manifest, receipt))
    signers = {bundle.key.id}
    for what, expected in _statements(store, manifest, number, previous_signed).items():
        place = layout.signature(manifest.uri, what)
        signed = _verified(store, place, what, keys)
        if signed.payload != expected:
            raise corrupt(place, "is the signature of something else than is stored")
        signers.add(signed.key.id)
    if len(signers) != 1:
        raise CorruptError(f"The signatures of {manifest.uri} are of {len(signers)} keys.", details={"file": path})
    return SignedReceipt(number, previous_signed, signers.pop())


def signed_numbers(store: Store, model: str, alias: str, keys: Sequence[PublicKey]) -> dict[str, tuple[int, str]]:
    """Seal → (number, path) of each receipt of an alias that one of the keys signed, whether or not it is stored.

    Files that none of the keys signed prove nothing and are left out.
    """
    found = {}
    folder = layout.history(model, alias)
    for name in store.list(folder):
        if not name.endswith(".receipt.dsse"):
            continue
        path = f"{folder}/{name}"
        try:
            value = parse_json(verify(store.read(path), IN_TOTO, keys, path).payload)
            about = value["predicate"]
            if (value["predicateType"], about["model"], about["alias"]) != (RECEIPT, model, alias):
                continue
            found[str(value["subject"][0]["digest"]["sha256"])] = (int(about["number"]), path)
        except (CorruptError, FileNotFoundError, ValueError, LookupError, TypeError):
            continue
    return found


def _place_in_chain(store: Store, manifest: Manifest, key: PublicKey) -> tuple[int, bool]:
    """The number of a receipt, and whether the one before it is signed; CorruptError for a signature that is gone."""
    newest = manifest.provenance.get("previous_receipt")
    if newest is None:
        return 1, False
    previous = pointed_at(store.manifest, Ref.model_validate(newest))
    path = layout.signature(previous.uri, "receipt.dsse")
    if is_signed(store, previous.ref):
        payload, signer = unverified_payload(store.read(path), path)
        number, _ = _said(path, payload)
        if signer == key.id:
            verify_receipt(store, previous, [key])
        return number + 1, True
    earlier = list(chain(store, previous.ref))
    if any(is_signed(store, one.ref) for one in earlier):
        raise CorruptError(
            f"{previous.uri} is not signed, although receipts before it are.",
            remedy="Restore its signatures, or find out who moved the alias without a key.",
            details={"file": path},
        )
    return len(earlier) + 1, False


def _statements(store: Store, manifest: Manifest, number: int, previous_signed: bool) -> dict[str, bytes]:
    """The payloads about a receipt and its training; the receipt's own is last."""
    receipt = read_receipt(store, manifest)
    training = training_statement(store, _checkpoint(store, manifest, receipt))
    about = receipt_statement(manifest, receipt, number=number, previous_signed=previous_signed)
    return {"provenance.dsse": training, "receipt.dsse": about}


def _checkpoint(store: Store, manifest: Manifest, receipt: Receipt) -> Manifest:
    """The checkpoint of the version that a receipt names."""
    if receipt.candidate is None:
        raise CorruptError(f"{manifest.uri} names no model version.", details={"file": layout.manifest(manifest.uri)})
    version = pointed_at(store.manifest, receipt.candidate)
    place = layout.manifest(version.uri)
    checkpoint = parsed(place, lambda about: Checkpoint.from_json(about["checkpoint"]), version.provenance)
    return pointed_at(store.manifest, checkpoint.ref)


def _manifest_sha256(store: Store, manifest: Manifest) -> str:
    data = store.read(layout.manifest(manifest.uri))
    read_manifest(manifest.uri, data, manifest.ref)
    return hashlib.sha256(data).hexdigest()


def _check_files(store: Store, path: str, payload: bytes, checkpoint: Manifest) -> None:
    """CorruptError unless a payload lists the files of a checkpoint, as the digest of its manifest shows."""

    def listed(data: bytes) -> dict[str, str]:
        return {str(one["name"]): str(one["digest"]) for one in parse_json(data)["predicate"]["resources"]}

    digests = parsed(path, listed, payload)
    names = {layout.MANIFEST, *(file.path for file in checkpoint.files)}
    if (
        digests.keys() != names
        or digests[layout.MANIFEST] != _manifest_sha256(store, checkpoint)
        or parsed(path, lambda found: files_statement(checkpoint, found), digests) != payload
    ):
        raise corrupt(path, "is the signature of something else than is stored")


def _verified(store: Store, path: str, what: str, keys: Sequence[PublicKey]) -> Signed:
    data = _read(store, path)
    envelope = data if what != "model.sig" else _envelope_in(data, path)
    signed = verify(envelope, IN_TOTO, keys, path)
    if _file(what, envelope, signed.key) != data:
        raise corrupt(path, "is not a signature as it was written")
    return signed


def _read(store: Store, path: str, receipt: Manifest | None = None) -> bytes:
    try:
        return store.read(path)
    except FileNotFoundError as error:
        if receipt is None:
            raise corrupt(path, "is missing") from error
        raise CorruptError(
            f"The receipt {receipt.uri} is not signed.",
            remedy="Either no key was configured when the alias moved, or the signature was deleted. "
            "Use it only if you know that there was no key; the next move with a key is signed.",
            details={"file": path},
        ) from error


def _file(what: str, envelope: bytes, key: PublicKey) -> bytes:
    """A signature as it is stored: an envelope, or for a model's files the bundle that `model_signing` reads."""
    if what != "model.sig":
        return envelope
    material = {"publicKey": {"hint": hashlib.sha256(key.pem()).hexdigest()}, "tlogEntries": []}
    bundle = {"mediaType": BUNDLE, "verificationMaterial": material, "dsseEnvelope": parse_json(envelope)}
    return canonical(bundle)


def _envelope_in(bundle: bytes, path: str) -> bytes:
    def envelope(data: bytes) -> bytes:
        return canonical(parse_json(data)["dsseEnvelope"])

    return parsed(path, envelope, bundle)


def _said(path: str, payload: bytes) -> tuple[int, bool]:
    """What a statement alone says: the receipt's number, and whether the one before it is signed."""

    def read_predicate(data: bytes) -> tuple[int, bool]:
        about = parse_json(data)["predicate"]
        if type(about["number"]) is not int or type(about["previousSigned"]) is not bool:
            raise TypeError("number and previousSigned are missing")
        return about["number"], about["previousSigned"]

    return parsed(path, read_predicate, payload)
