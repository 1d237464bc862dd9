"""A promoted model itself, for mirrors: its files for MLflow, and a folder in the form of Hugging Face's tools."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_contracts.errors import GateNotMet, StorageUnavailable, UsageError, UserCodeError
from data_contracts.foreign_files import parse_json, read_plain
from data_contracts.handoffs import Ref
from data_contracts.run_report import ModelName, RunReport
from infra import scratch
from infra.mirrors import Deadline, Kept, Mlflow
from infra.models import registry
from infra.settings import on_this_machine
from infra.store import Store
from tasks.export.exports import RECORD, export
from tasks.mirrors.mlflow_content import tags

# A tag of a version in MLflow: why it has no files.
FILES_TAG = "trainwright.no_files"
NOT_WANTED = "The spec says that the model's files are not sent."
_ELSEWHERE = "This server does not take files itself, so the model's files are not here."
_UNTRACEABLE = "The model could not be exported; `trainwright export` names the operation that cannot be traced."
_DIFFERENT = "The exported model's outputs differ from the checkpoint's; `trainwright export` says by how much."
_NOT_HERE = "The model could not be exported where its mirror was told; `trainwright export` says what is missing."
_EXCHANGE, _HERE = 2, -100  # RENAME_EXCHANGE and AT_FDCWD of Linux


def put_version(store: Store, server: Mlflow, kept: Kept, report: RunReport, deadline: Deadline, files: bool) -> str:
    """Register the version that a run promoted, with its files if it can have them; returns MLflow's own number.

    The files are sent first, so a version that is registered is whole.
    """
    model = report.model
    assert model is not None
    assert model.version is not None
    number = server.find_version(model.name, model.version)
    if number is not None:
        return number
    why = _put_files(store, server, kept, model, deadline) if files else NOT_WANTED
    told = {**tags(report), **({FILES_TAG: why} if why else {})}
    return server.put_version(model.name, model.version, kept, told, report.sentence)


def put_folder(store: Store, place: Path, model: str, alias: str, deadline: Deadline) -> str:
    """Make `place/<model>` the export of what an alias names now, in one step; returns what was done.

    Raises: UsageError if the folder is, or is reached by, a link, belongs to the store, or holds anything else.
    """
    folder = place / model
    _check_place(store, folder)
    while True:
        named = registry.read_alias(store, model, alias)
        if named is None:
            return f"{model}@{alias} names nothing"
        if not _has(folder, Ref.model_validate(named[0].value["model_version"])):
            _check_ours(folder, model)
            with on_this_machine(place):
                place.mkdir(parents=True, exist_ok=True)
                own = scratch.make("mirror", root=place)
            with own:
                draft = own.path / model
                export(store, f"{model}@{named[1]}", "huggingface", draft, on_poll=_until(deadline))
                with on_this_machine(place):
                    _take_place(draft, folder)
        if registry.read_alias(store, model, alias) == named:
            return f"{folder} has version {named[1]}"


def _put_files(store: Store, server: Mlflow, kept: Kept, model: ModelName, deadline: Deadline) -> str | None:
    """Send the version's files as MLflow reads them; returns why there are none, without a text of the user's code."""
    if not kept.takes_files:
        return _ELSEWHERE
    with scratch.make("mirror") as own:
        folder = own.path / "model"
        try:
            export(store, f"{model.name}@{model.version}", "mlflow", folder, on_poll=_until(deadline))
        except GateNotMet:
            return _DIFFERENT
        except UserCodeError:
            return _UNTRACEABLE
        except UsageError:
            return _NOT_HERE
        for file in sorted(folder.iterdir()):
            server.put_artifact(kept, f"model/{file.name}", file)
    return None


def _until(deadline: Deadline) -> Callable[[], None]:
    def check() -> None:
        if not deadline.left_s():
            raise StorageUnavailable(
                "The model was not exported in time.", remedy="`trainwright mirror` has more time for it."
            )

    return check


def _check_place(store: Store, folder: Path) -> None:
    place = folder.parent
    if os.path.realpath(place) != str(place) or folder.is_symlink():
        raise UsageError(
            f"{folder} is reached by a link, which a mirror does not follow.",
            remedy="Name the folder itself in mirrors.huggingface.folder.",
        )
    if store.is_local:
        kept = Path(os.path.realpath(store.uri))
        if folder == kept or kept in folder.parents or folder in kept.parents:
            raise UsageError(
                f"{folder} and the store {store.uri} overlap.",
                remedy="Name a folder outside of the store in mirrors.huggingface.folder.",
            )


def _check_ours(folder: Path, model: str) -> None:
    """UsageError unless a folder may be replaced: it is missing, empty, or an earlier export of this model."""
    told = _record(folder)
    if (told.get("target"), told.get("model")) == ("huggingface", model):
        return
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(
            f"{folder} holds something other than an export of {model}, so it is not replaced.",
            remedy="Move it away, or name another folder in mirrors.huggingface.folder.",
        )


def _has(folder: Path, version: Ref) -> bool:
    """Whether a folder is the export of this version, with files of the sizes that its record says."""
    told = _record(folder)
    if (told.get("target"), told.get("version_ref")) != ("huggingface", version.to_json()):
        return False
    try:
        return all((folder / one["path"]).stat().st_size == one["bytes"] for one in told["files"])
    except (OSError, KeyError, TypeError):
        return False


def _record(folder: Path) -> dict[str, Any]:
    """What an export's record says; {} if there is none."""
    try:
        told = parse_json(read_plain(folder / RECORD))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _take_place(draft: Path, folder: Path) -> None:
    """Give a folder's name to the draft in one step; what had the name before has the draft's."""
    if not folder.exists():
        draft.rename(folder)
        return
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None or rename(_HERE, os.fsencode(draft), _HERE, os.fsencode(folder), _EXCHANGE):
        # Not every system and file system can exchange two names: for a moment there is none.
        folder.rename(draft.with_name(f"{draft.name}.before"))
        draft.rename(folder)
