"""Exports a model version to a folder: the files, the model card and a record with every digest."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from data_contracts.handoffs import FileEntry
from data_contracts.messages.commands import EXPORT, Exported, ExportRequest, Format, Tolerance
from infra import code_bundle, scratch
from infra.audit import now
from infra.child import run_child
from infra.files import hash_stream
from infra.gang.remote_job import idle_limit, lay_out
from infra.store import Store
from tasks.export.card import card
from tasks.export.facts import ModelFacts, model_facts
from tasks.export.folder import check_free, made_whole
from tasks.export.mlflow_folder import write_mlflow_files

Target = Literal["safetensors", "torch", "onnx", "huggingface", "mlflow"]
# The files that a target's folder is made of.
_FORMATS: dict[Target, Format] = {
    "safetensors": "safetensors",
    "torch": "torch",
    "onnx": "onnx",
    "huggingface": "huggingface",
    "mlflow": "onnx",
}
CARD, RECORD, CONFIG = "README.md", "export.json", "config.json"
_HANG_S = 600.0
log = logging.getLogger("trainwright")


@dataclass(frozen=True)
class Export:
    """An export that was written.

    Attributes:
        record: what its `export.json` says.
    """

    folder: Path
    facts: ModelFacts
    exported: Exported
    record: dict[str, Any]


def export(
    store: Store,
    name: str,
    target: Target,
    folder: Path,
    tolerance: Tolerance | None = None,
    *,
    license_id: str = "",
    on_poll: Callable[[], None] | None = None,
) -> Export:
    """Export the version that `model`, `model@alias` or `model@3` names to a new or empty folder.

    Args:
        tolerance: how far outputs may differ from the checkpoint's; None: by their type.
        license_id: the model's licence, as a model hub calls it; "": not known.
        on_poll: called again and again while the child works; what it raises ends the export.

    Raises:
        UsageError: there is no such model, or the folder is taken.
        UserCodeError: the module cannot be traced; the operation is named.
        GateNotMet: the outputs differ by more than the tolerance.
        CorruptError: a part of the model is not what was sealed.
    """
    check_free(folder)
    facts = replace(model_facts(store, name), license_id=license_id)
    with made_whole(folder) as draft:
        exported = write_files(facts, _FORMATS[target], draft, tolerance, on_poll)
        record = describe(facts, target, exported, draft)
    return Export(folder, facts, exported, record)


def write_files(
    facts: ModelFacts,
    kind: Format,
    folder: Path,
    tolerance: Tolerance | None = None,
    on_poll: Callable[[], None] | None = None,
) -> Exported:
    """Let a child process export the checkpoint into an existing folder, and compare; errors as in `export`."""
    store, version = facts.store, facts.version
    with scratch.make("project") as workspace:
        request = ExportRequest(
            store=store.address,
            checkpoint=version.checkpoint,
            train=facts.trained.train,
            dataset=facts.dataset,
            split=facts.split,
            targets=facts.targets,
            format=kind,
            folder=str(folder.absolute()),
            tolerance=tolerance,
            code=facts.trained.code,
        )
        code = workspace.path / "project"
        here = request.at(lay_out(store, request.needs, lambda ref: code_bundle.unpack(store, ref, code)))
        limit = idle_limit(store, _HANG_S)
        return run_child(EXPORT, here, project=here.project, withhold=facts.withholds, limit=limit, on_poll=on_poll)


def describe(facts: ModelFacts, target: Target, exported: Exported, folder: Path) -> dict[str, Any]:
    """Write what a target needs beside the files: its own descriptions, the card and the record, which is returned."""
    written = list(exported.files)
    if target in ("safetensors", "huggingface") and not exported.pretrained:
        (folder / CONFIG).write_text(json.dumps(_config(facts, exported), indent=2) + "\n")
        written.append(CONFIG)
    if target == "mlflow":
        created = now().replace("T", " ")[:19]
        written += write_mlflow_files(folder, exported, created=created, metadata=_identity(facts))
    names = [*sorted(written), CARD, RECORD]
    (folder / CARD).write_text(card(facts, target, exported, names), encoding="utf-8")
    files = [_entry(folder, name).to_json() for name in names if name != RECORD]
    facts_known = exported.model_dump(mode="json", exclude={"schema_version", "files"})
    record = {
        "schema_version": 1,
        "target": target,
        **_identity(facts),
        "exported": now(),
        "files": files,
        **facts_known,
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    return record


def _identity(facts: ModelFacts) -> dict[str, Any]:
    """The version, its checkpoint and its dataset, with ids and seals."""
    version = facts.version
    return {
        "model": version.name,
        "version": version.version,
        "version_ref": version.ref.to_json(),
        "checkpoint": version.checkpoint.ref.to_json(),
        "dataset_id": facts.dataset.ref.id if facts.dataset is not None else None,
        "split": facts.split,
    }


def _config(facts: ModelFacts, exported: Exported) -> dict[str, Any]:
    """What a person needs to make the module that the tensors belong to."""
    arguments, withheld = facts.arguments
    return {
        "architectures": [facts.model_class.rpartition(".")[2]],
        "class_path": facts.model_class,
        "init_args": arguments,
        **({"withheld": withheld} if withheld else {}),
        "model": facts.version.name,
        "version": facts.version.version,
        "tensors": exported.tensors,
        "parameters": exported.parameters,
        "tied": exported.tied,
    }


def _entry(folder: Path, name: str) -> FileEntry:
    with (folder / name).open("rb") as file:
        size, digest = hash_stream(file)
    return FileEntry(path=name, bytes=size, blake3=digest)
