"""The input of `predict`: a file, a glob or a folder, as sources and resolved files."""

from __future__ import annotations

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
            files are written, and the credentials for S3, and say whether folders' names give columns.

    Raises: UsageError if there is no file, or one that is not CSV, JSON Lines or Parquet.
    """
    columns = next((one.columns for one in trained_on if one.columns), None)
    csv = next((one.csv for one in trained_on if one.csv), None)
    options = next((one.storage_options for one in trained_on if one.storage_options), {})
    is_s3 = text.startswith("s3://")
    if is_s3:
        refuse_foreign_credentials(options)
    ending = base_name(text)[0]
    if ending not in ENDINGS and not is_s3 and os.path.isfile(os.path.expanduser(text)):
        raise UsageError(
            f"The format of {text} is not clear from its name.",
            remedy="Name a folder, a glob or a file that ends in .csv, .jsonl or .parquet, also compressed.",
        )
    named = None if ending in ENDINGS and ending not in (".csv", ".tsv") else columns
    sources = [
        SourceSpec(
            uri=text,
            columns=named,
            csv=csv if may_be_csv(text, "auto") else None,
            hive_partitioning=all(one.hive_partitioning for one in trained_on),
            storage_options=options if is_s3 else {},
        )
    ]
    files = resolve_sources(
        sources, root=Path.cwd(), window=None, window_path=None, cache=state_folder(), field="INPUT"
    )
    return sources, [file for file in files if file.bytes]
