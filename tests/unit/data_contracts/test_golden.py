"""What version 1 wrote stays readable. A change here is a change of format: give it a new version, keep these files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from blake3 import blake3
from pydantic import BaseModel

from data_contracts.canonical import digest
from data_contracts.handoffs import FileEntry
from data_contracts.load import load_spec
from infra.store.seal import read_manifest, write_manifest


def test_the_golden_spec_of_version_1_is_read_as_it_was(repository: Path) -> None:
    golden = repository / "tests" / "golden"
    assert load_spec(golden / "spec-v1.yaml").model_dump(mode="json") == json.loads(
        (golden / "spec-v1.json").read_text()
    )


def _unset(section: Any, above: str) -> list[str]:
    if isinstance(section, dict):
        return [name for key, value in section.items() for name in _unset(value, f"{above}.{key}")]
    if isinstance(section, list):
        return [name for value in section for name in _unset(value, above)]
    if not isinstance(section, BaseModel):
        return []
    fields = type(section).model_fields
    unset = [f"{above}.{name}" for name in fields if name not in section.model_fields_set]
    return unset + [name for field in fields for name in _unset(getattr(section, field), f"{above}.{field}")]


def test_the_golden_spec_sets_every_field(repository: Path) -> None:
    spec = load_spec(repository / "tests" / "golden" / "spec-v1.yaml")
    # What one entry of a list leaves out, another has; what another field excludes cannot stand beside it.
    excluded = ["spec.contract.contamination.columns", "spec.contract.features", "spec.contract.predictions",
                "spec.contract.runner", "spec.data.window.column",
                "spec.environment.packages", "spec.evaluate.job_variables", "spec.evaluate.queue",
                "spec.mirrors.mlflow.token",
                "spec.promote.canary.min_gain",
                "spec.shards.split.by", "spec.shards.split.column",
                "spec.shards.split.fractions", "spec.shards.split.gap", "spec.train.job_variables",
                "spec.train.loader.mixture", "spec.train.queue", "spec.verify.job_variables",
                "spec.verify.queue"]  # fmt: skip
    repeated = ("spec.data.source", "spec.evaluate.metrics", "spec.evaluate.sets", "spec.evaluate.slices.",
                "spec.promote.gates", "spec.search.space", "spec.train.transform")  # fmt: skip
    assert sorted(name for name in _unset(spec, "spec") if not name.startswith(repeated)) == excluded


def test_the_golden_manifest_of_version_1_is_read_and_written_again_byte_for_byte(repository: Path) -> None:
    folder = repository / "tests" / "golden" / "manifest-v1"
    data = (folder / "manifest.json").read_bytes()
    manifest = read_manifest("datasets/golden-0", data)
    assert [entry.path for entry in manifest.files] == ["handoff.json", "train-00000.csv"]
    for entry in manifest.files:
        content = (folder / entry.path).read_bytes()
        assert entry == FileEntry(path=entry.path, bytes=len(content), blake3=blake3(content).hexdigest())
    # As the design has it, without our own code: the id is over the content, the seal over all that stands before it.
    assert manifest.id == digest(json.loads(data)["content"])
    body, _, tail = data.partition(b',"seal":')
    assert tail == f'"{hashlib.sha256(body).hexdigest()}"}}'.encode()
    again, identity = write_manifest(manifest.kind, manifest.settings, manifest.provenance, manifest.files)
    assert (again, identity) == (data, manifest.id)
