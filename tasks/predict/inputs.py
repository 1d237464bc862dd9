"""The input of `predict`: a file, a glob or a folder, as sources and resolved files."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from data_contracts.errors import UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import SourceSpec
from data_contracts.pipeline_spec.csv_format import may_be_csv
from infra.machine.settings import state_folder
from infra.sources import resolve_sources
from infra.sources.named_places import refuse_foreign_credentials
from infra.sources.resolve import base_name

ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")


def resolve_input(text: str, trained_on: Sequence[SourceSpec]) -> tuple[list[SourceSpec], list[SourceFile]]:
    """The sources and the files, with their digests.

    Args:
        text: path, glob, folder or s3:// address.
        trained_on: sources of the training's rows; they name the columns of CSV files without a header line, how CSV
            files are written, and the credentials for S3.

    Raises: UsageError if there is no file, or one that is not CSV, JSON Lines or Parquet.
    """
    columns = next((one.columns for one in trained_on if one.columns), None)
    csv = next((one.csv for one in trained_on if one.csv), None)
    options = next((one.storage_options for one in trained_on if one.storage_options), {})
    uris = [text] if "://" in text else _named(text)
    if any(uri.startswith("s3://") for uri in uris):
        refuse_foreign_credentials(options)
    sources = []
    for uri in uris:
        ending = base_name(uri)[0]
        if ending not in ENDINGS and not any(sign in uri for sign in "*?["):
            raise UsageError(
                f"The format of {uri} is not clear from its name.",
                remedy="Name a glob, or a file that ends in .csv, .jsonl or .parquet (or then .gz, .bz2, .xz, .zst).",
            )
        named = columns if ending in (".csv", ".tsv") else None
        stored = options if uri.startswith("s3://") else {}
        sources.append(
            SourceSpec(uri=uri, columns=named, csv=csv if may_be_csv(uri, "auto") else None, storage_options=stored)
        )
    files = resolve_sources(
        sources, root=Path.cwd(), window=None, window_path=None, cache=state_folder(), field="INPUT"
    )
    return sources, [file for file in files if file.bytes]


def _named(text: str) -> list[str]:
    """The paths that a text names; a folder stands for the files in it, without those that begin with `.` or `_`."""
    path = Path(text).expanduser()
    if not path.is_dir():
        if not os.path.exists(path) and not glob.glob(str(path), recursive=True):
            raise UsageError(f"No file matches {text}.", remedy="Correct the path or glob.")
        return [str(path.absolute()) if path.exists() else str(path)]
    names = sorted(entry.name for entry in os.scandir(path) if entry.is_file() and entry.name[0] not in "._")
    if not names:
        raise UsageError(f"{text} has no files.", remedy=f"Name its files with a glob, such as {text}/*/*.parquet.")
    return [str(path.absolute() / name) for name in names]
