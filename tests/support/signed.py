"""A small store with signed receipts, made without a training: two promotions, a rollback and a release.

Everything that a proof reads is there: code, raw file, contract, dataset, checkpoints, evaluations, versions, receipts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from data_contracts.alias_moves import Approval
from data_contracts.canonical import canonical
from data_contracts.handoffs import Checkpoint, Evaluation, MetricValue, ModelVersion, Receipt, Ref
from infra import code_bundle
from infra.files import file_digest
from infra.models import registry
from infra.signing.keys import PublicKey, SigningKey, load_public_key, load_signing_key, make_key_pair
from infra.store import Store, layout, open_store
from tasks.stages.rollback import release, rollback
from tests.support.files import write_files

MODEL = "tiny"
SUITE = {"expectations": [{"type": "expect_column_to_exist", "kwargs": {"column": "a"}, "severity": "critical"}]}


def pair(folder: Path) -> tuple[SigningKey, PublicKey, Path]:
    """A new pair of keys: the private key, the public key and the public key's file."""
    private, public = make_key_pair(folder)
    return load_signing_key(f"file:{private}", folder, "sign"), load_public_key(public), public


class SignedStore:
    """A store in `folder/store` with its project beside it; `key` signs what is moved, None signs nothing."""

    def __init__(self, folder: Path, key: SigningKey | None) -> None:
        self.project = write_files(folder / "project", {"net.py": "x = 1\n", "rows.csv": "a\n1\n2\n"})
        self.root = folder / "store"
        self.store: Store = open_store(str(self.root))
        self.key = key
        self.count = 0
        self.code = code_bundle.pack(self.project, self.store, provenance=self.about()).ref
        self.dataset = self._dataset()

    def about(self, *parents: Ref | None) -> dict[str, Any]:
        """A provenance; every call is a minute later."""
        self.count += 1
        code = {"ref": self.code.to_json(), "commit": "c" * 40, "dirty": False} if hasattr(self, "code") else {}
        return {
            "parents": [one.to_json() for one in parents if one is not None],
            "run_id": f"run-{self.count}",
            "code": code,
            "spec_digest": "d" * 64,
            "lock_digest": "e" * 64,
            "started": f"2026-11-25T10:{self.count:02}:00+00:00",
            "finished": f"2026-11-25T10:{self.count:02}:30+00:00",
            "actor": "ann",
            "trigger": "cli",
            "tags": {},
        }

    def _sealed(
        self, uri: str, kind: str, settings: dict[str, Any], about: dict[str, Any], **files: bytes | Any
    ) -> Ref:
        writer = self.store.writer(uri)
        for name, data in files.items():
            writer.put(name.replace("__", "."), data if isinstance(data, bytes) else canonical(data))
        return writer.seal(kind, settings, about)

    def _dataset(self) -> Ref:
        raw = self.project / "rows.csv"
        file = {"uri": str(raw), "bytes": raw.stat().st_size, "blake3": file_digest(raw), "format": "csv"}
        about = {**self.about(), "raw": [file], "raw_sources": [{"uri": "rows.csv"}], "raw_root": str(self.project)}
        report = {"key": "c", "accepted": True, "rows": 2, "expectations": 1, "suite_digest": "s", "schema_version": 1}
        contract = self._sealed("contracts/c-0", "contract", {"suite": SUITE}, about, handoff__json=report)
        handoff = {"key": "d", "format": "parquet", "splits": {}, "columns": {"a": "int64"}, "schema_version": 1}
        return self._sealed("datasets/d-0", "dataset", {}, self.about(contract), handoff__json=handoff)

    def version(self, n: int) -> tuple[ModelVersion, Evaluation]:
        """A trained, verified and scored model as version `n`."""
        training = layout.training(f"t{n}", 0)
        uri = layout.checkpoint(training, 5, 0)
        settings = {"step": 5, "epoch": 1, "world_size": 1}
        about = {**self.about(self.dataset), "training": training, "generation": 0, "versions": {"torch": "2.13.0"}}
        train = {"train": {"seed": n}, "dataset_id": self.dataset.id}
        files = {"train__json": train, "weights-0__safetensors": bytes(range(n, n + 64))}
        ref = self._sealed(uri, "checkpoint", settings, about, **files)
        checkpoint = Checkpoint(
            ref=ref, key=f"t{n}", training=training, step=5, epoch=1, generation=0, world_size=1, state="verified"
        )
        self.store.create_json(layout.verified(uri), {"schema_version": 1, "checkpoint": ref.to_json()})
        evaluation = self.evaluation(n, checkpoint)
        about = self.about(ref, evaluation.ref)
        return registry.write_version(self.store, MODEL, checkpoint, evaluation.ref, {}, about), evaluation

    def evaluation(self, n: int, checkpoint: Checkpoint) -> Evaluation:
        """The scores of a checkpoint."""
        value = MetricValue(value=0.5 + n / 10, mode="max", rows=2, unit="row")
        fields = {"key": f"e{n}", "checkpoint_id": checkpoint.ref.id, "dataset_ids": {}, "metrics": {"a": value}}
        handoff = {**fields, "metrics": {"a": value.to_json()}, "schema_version": 1}
        about = self.about(checkpoint.ref, self.dataset)
        ref = self._sealed(f"evaluations/e{n}-0", "evaluation", {}, about, handoff__json=handoff)
        return Evaluation.model_validate({**fields, "ref": ref})

    def promote(self, n: int, alias: str = "champion", key: SigningKey | None = None) -> Receipt:
        """Make version `n` the champion."""
        version, evaluation = self.version(n)
        return self.move(version, evaluation.ref, alias, key)

    def move(
        self,
        version: ModelVersion,
        evaluation: Ref,
        alias: str,
        key: SigningKey | None = None,
        approval: Approval | None = None,
    ) -> Receipt:
        """Move an alias to a version."""
        current, previous = registry.read_alias(self.store, MODEL, alias) or (None, None)
        champion = Ref.model_validate(current.value["model_version"]) if current else None
        receipt = Receipt(
            decision="promoted",
            model=MODEL,
            alias=alias,
            version=version.version,
            previous=previous,
            candidate=version.ref,
            evaluation=evaluation,
            champion=champion,
            sentence=f"{MODEL}@{alias} is version {version.version}",
            approval=approval,
        )
        about = self.about(version.ref, evaluation, champion)
        held = registry.holds(self.store, current)
        return registry.move_alias(self.store, current, version, receipt, about, held, key or self.key)

    def back(self) -> Receipt:
        """Roll the champion back; the key is that of the environment."""
        return rollback(self.store, MODEL, "champion", None, self.about(), "it was worse")

    def release(self) -> Receipt:
        """Lift the only hold; the key is that of the environment."""
        return release(self.store, MODEL, "champion", None, "looked again", self.about())
