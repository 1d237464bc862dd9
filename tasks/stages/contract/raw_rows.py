"""Parts of reuse keys: the settings that decide the rows of raw files, and a suite's verdict on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from data_contracts.contract.suites import suite_digest
from data_contracts.handoffs import SourceFile
from data_contracts.pipeline_spec import SourceSpec


def suite_settings(suite: dict[str, Any], fail_on: str, sensitive: Iterable[str]) -> dict[str, Any]:
    """What decides a check's verdict on given rows: the suite, what it fails on, and what is masked."""
    return {"suite": suite_digest(suite), "fail_on": fail_on, "sensitive": sorted(sensitive)}


def reading_settings(sources: Iterable[SourceSpec]) -> list[dict[str, object]]:
    """How each source is read: the settings that decide its rows."""
    return [
        {
            "pattern": one.pattern,
            "columns": one.columns,
            **({"pieces": one.pieces.model_dump()} if one.pieces else {}),
            **({"csv": csv} if one.csv and (csv := one.csv.model_dump(exclude_defaults=True)) else {}),
        }
        for one in sources
    ]


def raw_inputs(files: Iterable[SourceFile]) -> list[dict[str, Any]]:
    """Raw files by their content, not by their place; columns taken from paths count."""
    return [
        {
            **{"blake3": file.blake3, "format": file.format, "columns": file.columns, "source": file.source},
            **({"hidden_index": False} if file.hidden_index else {}),
        }
        for file in files
    ]


def index_left_out(files: Iterable[SourceFile]) -> str:
    """The remark that a column which pandas hides is not read; "" if no file has one."""
    named = [file.uri.rpartition("/")[2] for file in files if file.hidden_index]
    more = f" and {len(named) - 1} more" if len(named) > 1 else ""
    return (
        f"the index without a name (__index_level_0__) of {named[0]}{more} is not read (docs/data.md)" if named else ""
    )


def runs_tokenizer(sources: Iterable[SourceSpec]) -> bool:
    """Whether a tokenizer of the user's decides the rows that some sources give: their code is then part of a key."""
    return any(one.pieces is not None and one.pieces.tokenizer is not None for one in sources)
