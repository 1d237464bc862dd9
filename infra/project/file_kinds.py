"""Recognise what in a project is not code: data by its name, stores and hand-offs by their content, DVC's outputs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

import yaml

from data_contracts.foreign_json import parse_json
from data_contracts.plain_file import read_plain
from data_contracts.secret_names import without_copy
from infra.files.new_folder import TAG
from infra.scratch import PREFIX
from infra.scratch_owner import NOTE

_DATA = {
    ".arrow", ".avro", ".bin", ".ckpt", ".csv", ".db", ".dta", ".duckdb", ".feather", ".h5", ".hdf5", ".ipc", ".jsonl",
    ".lmdb", ".mat", ".mdb", ".ndjson", ".npy", ".npz", ".onnx", ".orc", ".parquet", ".pickle", ".pkl", ".pq", ".pt",
    ".pth", ".rds", ".safetensors", ".sav", ".sqlite", ".sqlite3", ".tfrecord", ".tsv", ".xls", ".xlsx",
    ".7z", ".bz2", ".gz", ".rar", ".tar", ".tgz", ".xz", ".zip", ".zst",
    ".avi", ".bmp", ".flac", ".gif", ".jpeg", ".jpg", ".mkv", ".mov", ".mp3", ".mp4", ".ogg", ".png", ".tif", ".tiff",
    ".wav", ".webm", ".webp", ".ipynb", ".log", ".mbox",
}  # fmt: skip
_DATA_NAMES = ("core", "core.[0-9]*", "*dump*.sql", "*.log.[0-9]*")


def is_data(name: str) -> bool:
    """Whether a file, or the original of a copy (`rows.csv.bak`), has the name of data."""
    original = without_copy(name)
    endings = {PurePosixPath(one).suffix for one in (name, original, original.removesuffix(".txt"))}
    return not _DATA.isdisjoint(endings) or any(fnmatchcase(original, pattern) for pattern in _DATA_NAMES)


def is_store(path: Path) -> bool:
    """Whether a `store.json` belongs to a store, and is not a file of the user's."""
    about = _json(path)
    return isinstance(about, dict) and {"made", "pointers", "schema"} <= about.keys()


def is_our_folder(folder: Path) -> bool:
    """Whether Trainwright wrote all of a folder: it is marked, a temporary folder or an export."""
    if (folder / TAG).is_file() or (folder.name.startswith(PREFIX) and (folder / NOTE).is_file()):
        return True
    about = _json(folder / "export.json")
    return isinstance(about, dict) and {"target", "version_ref", "checkpoint"} <= about.keys()


def is_handoff(path: Path) -> bool:
    """Whether a stage command's `--out` wrote the file: it changes with each run and is not code."""
    if path.suffix != ".json":
        return False
    about = _json(path)
    if not isinstance(about, dict) or not {"schema_version", "ref"} <= about.keys():
        return False
    return about["ref"] is None or (isinstance(about["ref"], dict) and about["ref"].keys() == {"uri", "id", "seal"})


def _json(path: Path) -> object:
    try:
        return parse_json(read_plain(path))
    except (OSError, ValueError, RecursionError):
        return None


def dvc_outs(path: Path) -> Iterator[Path]:
    """The files and folders that a `.dvc` file, a `dvc.yaml` or a `dvc.lock` names as outputs or tracked data."""
    if path.suffix != ".dvc" and path.name not in ("dvc.yaml", "dvc.lock"):
        return
    try:
        about = yaml.safe_load(read_plain(path))
        stages = [about] if path.suffix == ".dvc" else list(about.get("stages", {}).values())
        for stage in stages:
            done = stage.get("do", stage)
            for out in [one for kind in ("outs", "metrics", "plots") for one in done.get(kind, [])]:
                # In dvc.yaml an output with options is a mapping from its path to them.
                name = out.get("path", next(iter(out))) if isinstance(out, dict) else out
                yield Path(os.path.abspath(path.parent / str(done.get("wdir", ".")) / str(name)))
    except (OSError, ValueError, AttributeError, TypeError, StopIteration, RecursionError, yaml.YAMLError):
        return
