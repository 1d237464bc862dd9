"""A raw file that takes more memory than its reader may, or ends it, is a cause with a sentence that names the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_contracts.errors import OutOfMemory
from data_contracts.messages.raw_data import CONTRACT, ContractOutcome, ContractRequest
from data_contracts.pipeline_spec import SourceSpec
from infra import child
from infra.child import run_child
from infra.sources import resolve_sources
from tests.support.expectations import E, suite

COLUMNS = 20_000


def checked(path: Path, share: float) -> ContractOutcome:
    """The outcome of a contract on one file, whose reader may take so much of the machine's memory."""
    source = SourceSpec(uri=str(path))
    request = ContractRequest(
        suite=suite(E("table_row_count_to_be_between", min_value=1)),
        files=resolve_sources([source], root=path.parent, window=None, window_path=None, cache=path.parent / "cache"),
        sources=[source],
        root=str(path.parent),
        window=None,
        window_column=None,
        fail_on="info",
        sensitive=[],
    )
    return run_child(CONTRACT, request, memory_share=share)


def wide(path: Path, rows: int) -> Path:
    """A CSV or JSON Lines file of COLUMNS columns."""
    names = [f"c{number}" for number in range(COLUMNS)]
    if path.suffix == ".csv":
        lines = [",".join(names), *(",".join([str(row)] * COLUMNS) for row in range(rows))]
    else:
        lines = [json.dumps(dict.fromkeys(names, row)) for row in range(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_wide_file_is_named_if_it_does_not_fit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = wide(tmp_path / name, 3)
    monkeypatch.setattr(child, "machine_bytes", lambda: 2**30)
    with pytest.raises(OutOfMemory) as caught:
        checked(path, 0.15)
    assert str(caught.value).startswith(f"Reading {path} ended at row ")
    assert "It took more than 0.1 GiB of memory, 15% of this machine's. Split the file, leave out" in str(caught.value)
    assert "raise data.memory_share" in str(caught.value)
