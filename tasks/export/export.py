"""Exports a model version to a folder: the files, the model card and a record with every digest.

The folder is new or empty, and complete or not there. One with an ONNX file is also a folder that MLflow's own
`load_model` opens, made from facts alone and without MLflow. The format is that of `MLmodel` files of MLflow 3:
flavours `onnx` and `python_function`, a signature of named tensors, and an input example of zeros.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import json
import logging
import math
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from data_contracts.errors import UsageError
from data_contracts.handoffs import FileEntry
from data_contracts.messages.commands import EXPORT, Exported, ExportRequest, Format, TensorFacts, Tolerance
from infra import code_bundle, scratch
from infra.audit import now
from infra.child import run_child
from infra.files import check_new, delete_unless_held, hash_stream
from infra.gang.remote_job import idle_limit, lay_out
from infra.settings import on_this_machine
from infra.store import Store
from tasks.export.card import ModelFacts, card, model_facts

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
_OTHER = "Name a folder that does not exist yet, or an empty one."
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
MLMODEL, REQUIREMENTS = "MLmodel", "requirements.txt"
EXAMPLE, SERVING = "input_example.json", "serving_input_example.json"
# The version whose format is written.
_MLFLOW = "3.17.0"
_EXAMPLE_ROWS = 2


@dataclass(frozen=True)
class Export:
    """An export that was written.

    Attributes:
        record: what its `export.json` says.
    """

    folder: Path
    facts: ModelFacts
    exported: Exported
    record: Mapping[str, object]


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


def describe(facts: ModelFacts, target: Target, exported: Exported, folder: Path) -> Mapping[str, object]:
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


def _identity(facts: ModelFacts) -> Mapping[str, object]:
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


def _config(facts: ModelFacts, exported: Exported) -> Mapping[str, object]:
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


@contextlib.contextmanager
def made_whole(folder: Path) -> Iterator[Path]:
    """A draft beside `folder`, which takes its name once the block has ended well, in one step.

    A draft that a killed process left is removed by the next export to the same folder.

    Raises: UsageError if the folder is a link, a file or not empty, or if its parent does not exist.
    """
    place = folder.absolute()
    check_free(place)
    with on_this_machine(place):
        _sweep(place)
        draft, handle = _draft(place)
    try:
        yield draft
        with on_this_machine(place):
            _settle(draft)
            _take_name(draft, place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        os.close(handle)


def check_free(folder: Path) -> None:
    """UsageError unless an export may be written to this folder."""
    if not folder.parent.is_dir():
        raise UsageError(f"{folder.parent} is not a folder.", remedy="Make it first, or name another place.")
    check_new(folder, _OTHER)


def _draft(folder: Path) -> tuple[Path, int]:
    """A new folder beside this one, and the handle that locks it."""
    while True:
        draft = folder.with_name(f"{_prefix(folder)}{secrets.token_hex(8)}")
        draft.mkdir(mode=0o700)
        handle = os.open(draft, _FOLDER)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if draft.exists():  # another export may have swept it before it was locked
            return draft, handle
        os.close(handle)


def _prefix(folder: Path) -> str:
    return f".{folder.name}.draft-"


def _sweep(folder: Path) -> None:
    """Remove drafts of this folder whose process has ended."""
    for path in folder.parent.glob(f"{glob.escape(_prefix(folder))}*"):
        with contextlib.suppress(OSError):
            delete_unless_held(path)


def _settle(draft: Path) -> None:
    """Write the files' bytes to the disk and give them the permissions that new files have."""
    mask = os.umask(0)
    os.umask(mask)
    for path in draft.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.chmod(0o666 & ~mask)
    draft.chmod(0o777 & ~mask)


def _take_name(draft: Path, folder: Path) -> None:
    try:
        draft.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise UsageError(f"{folder} was filled while the export was made.", remedy=_OTHER) from error


def write_mlflow_files(
    folder: Path, exported: Exported, *, created: str, metadata: Mapping[str, object] | None = None
) -> list[str]:
    """Write `MLmodel` and what it names beside `model.onnx`; returns the names of the files written.

    Args:
        created: UTC, as `2026-11-25 02:00:00`.
        metadata: facts that MLflow keeps with the model, as JSON can hold them.
    """
    versions = exported.versions
    needs = ["mlflow", *(f"{name}=={versions[name]}" for name in ("onnx", "onnxruntime") if name in versions), "numpy"]
    (folder / REQUIREMENTS).write_text("\n".join(needs) + "\n")
    python = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    environment = {"python": python, "build_dependencies": ["pip"], "dependencies": [f"-r {REQUIREMENTS}"]}
    (folder / "python_env.yaml").write_text(yaml.safe_dump(environment, sort_keys=False))
    example = {one.name: _zeros(_sizes(one), one.dtype) for one in exported.inputs}
    (folder / EXAMPLE).write_text(json.dumps(example))
    (folder / SERVING).write_text(json.dumps({"inputs": example}))
    model = {
        "flavors": {
            "onnx": {
                "data": "model.onnx",
                "onnx_version": versions.get("onnx", ""),
                "providers": ["CPUExecutionProvider"],
                "onnx_session_options": None,
                "code": None,
            },
            "python_function": {
                "loader_module": "mlflow.onnx",
                "data": "model.onnx",
                "env": {"virtualenv": "python_env.yaml"},
                "python_version": python,
            },
        },
        "mlflow_version": _MLFLOW,
        "saved_input_example_info": {"artifact_path": EXAMPLE, "type": "ndarray", "serving_input_path": SERVING},
        "signature": {"inputs": _signature(exported.inputs), "outputs": _signature(exported.outputs), "params": None},
        "utc_time_created": created,
        "metadata": metadata or {},
    }
    (folder / MLMODEL).write_text(yaml.safe_dump(model, sort_keys=False, allow_unicode=True))
    return [MLMODEL, REQUIREMENTS, "python_env.yaml", EXAMPLE, SERVING]


def _signature(facts: Sequence[TensorFacts]) -> str:
    """Named tensors as MLflow writes them in a signature; a size that varies is -1."""
    specs = []
    for one in facts:
        shape = [size if isinstance(size, int) else -1 for size in one.shape]
        # ONNX Runtime gives no bfloat16 to NumPy.
        dtype = "float32" if one.dtype == "bfloat16" else one.dtype
        specs.append({"name": one.name, "type": "tensor", "tensor-spec": {"dtype": dtype, "shape": shape}})
    return json.dumps(specs)


def _sizes(one: TensorFacts) -> list[int]:
    return [size if isinstance(size, int) else _EXAMPLE_ROWS for size in one.shape]


def _zeros(sizes: Sequence[int], dtype: str) -> Any:
    """Nested lists of zeros; no row of the data leaves the store."""
    zero: Any = False if dtype == "bool" else 0.0 if "float" in dtype else 0
    if not sizes or math.prod(sizes) == 0:
        return [] if sizes else zero
    return [_zeros(sizes[1:], dtype) for _ in range(sizes[0])]
