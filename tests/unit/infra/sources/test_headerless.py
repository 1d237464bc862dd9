"""Without a header, the first row's values stand for column names: with sensitive columns, no message has them."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from data_contracts.errors import UsageError
from data_contracts.messages.raw_data import ContractRequest
from data_contracts.quoting import LOG
from infra.contract import contract_worker
from infra.sources import Window
from tests.support.files import write_files
from tests.unit.infra.sources.conftest import Raw, parquet

SECRET = "jane@x.example"
WINDOW = Window(datetime(2026, 1, 1), datetime(2026, 2, 1))


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOG, str(tmp_path / "log.txt"))


WINDOWED = f"2026-01-01,{SECRET}\n2026-01-02,x\n"
KEYS = "".join(json.dumps({SECRET: value}) + "\n" for value in (1, True))
CASES: dict[str, tuple[dict[str, str | bytes], dict[str, Any]]] = {
    "no column": ({"a.csv": WINDOWED}, {"columns": ["ts"]}),
    "no window column": ({"a.csv": WINDOWED}, {"window": WINDOW, "window_column": "ts"}),
    "twice": ({"a.csv": f"1,{SECRET},{SECRET}\n2,x,y\n"}, {}),
    "twice in Parquet": ({"a.parquet": parquet(pa.table([[1], [2]], [SECRET, SECRET]))}, {}),
    "two types": (
        {"a.parquet": parquet({"id": [1], SECRET: [1]}), "b.parquet": parquet({"id": [1], SECRET: [[1]]})},
        {},
    ),
    "a key of two types": ({"a.jsonl": KEYS}, {}),
}


@pytest.mark.parametrize("block", [30, 1 << 23])
@pytest.mark.parametrize("case", CASES)
def test_no_message_has_a_name_that_only_the_data_has(
    case: str, block: int, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.sources.places._READ_BYTES", block)
    files, options = CASES[case]
    write_files(raw.root, files)
    with pytest.raises(UsageError, match="withheld because data.sensitive is set") as caught:
        raw.read(*files, **options)
    assert SECRET not in json.dumps(caught.value.to_json())


def test_sensitive_columns_that_are_not_there_come_before_the_window_s(raw: Raw) -> None:
    raw.write("a.csv", f"2025-01-01,{SECRET}\n2025-01-02,x\n")
    asked = {
        "suite": {},
        "files": [file.model_dump(mode="json") for file in raw.resolve("a.csv")],
        "sources": [{"uri": "a.csv"}],
        "root": str(raw.root),
        "window": [WINDOW.start.isoformat(), WINDOW.end.isoformat()],
        "window_column": "ts",
        "fail_on": "critical",
        "sensitive": ["email"],
    }
    with pytest.raises(UsageError, match=r"data\.sensitive: the data has no column email\."):
        contract_worker.main(ContractRequest.from_json(asked), lambda report: None)
