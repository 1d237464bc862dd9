"""What is signed: in-toto statements, each a pure function of what is sealed, so a verifier computes it again.

- `receipt_statement`: the receipt of a move, by its seal, and what it says.
- `training_statement`: SLSA provenance of the training behind the version: what went in, by whom, when.
- `files_statement`: the files of its checkpoint, as OpenSSF's model signing lists them.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping
from typing import Any

from data_contracts.canonical import canonical
from data_contracts.handoffs import Receipt, Ref
from infra.records.receipts import pointed_at
from infra.store import Manifest, Store

STATEMENT = "https://in-toto.io/Statement/v1"
RECEIPT = "urn:trainwright:receipt:v1"
PROVENANCE = "https://slsa.dev/provenance/v1"
MODEL_FILES = "https://model_signing/signature/v1.0"
BUILD, BUILDER = "urn:trainwright:training:v1", "urn:trainwright:conductor:v1"


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


def _statement(subject: Ref, predicate_type: str, predicate: dict[str, Any]) -> bytes:
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


def _json(ref: Ref | None) -> dict[str, Any] | None:
    return None if ref is None else ref.to_json()


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(one) for name, one in value.items() if one is not None}
    return value
