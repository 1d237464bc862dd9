"""What checks found in files lies sealed in the store, is found by the next check, and is not trusted if damaged."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.canonical import canonical
from data_contracts.contract import file_statistics as statistics_records
from data_contracts.contract.suites import load_suite
from data_contracts.errors import UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.messages.raw_data import ContractOutcome, ContractRequest
from data_contracts.pipeline_spec import QuarantineSpec, SourceSpec
from infra.contract import contract_worker, file_statistics
from infra.files import file_digest
from infra.sources import read
from infra.store import open_store
from tasks.stages import contract_check
from tasks.stages.contract_check import MOST_STATISTICS, statistics_key, why_no_statistics, worth_it
from tests.support.runs import make_run


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ContractRequest:
    monkeypatch.setattr(contract_check, "LEAST_BYTES", 1)
    files = []
    for number in range(12):
        path = tmp_path / f"{number:02}.parquet"
        pq.write_table(pa.table({"x": np.arange(50) + number}), path)
        files.append(SourceFile(uri=str(path), bytes=path.stat().st_size, blake3=file_digest(path), format="parquet"))
    between = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "x", "min_value": 0}}
    suite = load_suite({"name": "s", "expectations": [between]}, tmp_path)
    return ContractRequest(
        suite=suite, files=files, sources=[SourceSpec(uri="*.parquet")], root=str(tmp_path), window=None,
        window_column=None, fail_on="info", sensitive=[],
    )  # fmt: skip


class Checker:
    """Checks as the stage does, and counts the files that were read for it."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = open_store(str(tmp_path / "store"), {})
        self.run = make_run(self.store)
        self.scanned = Mock(wraps=file_statistics.scanned)
        monkeypatch.setattr(file_statistics, "scanned", self.scanned)

    def __call__(self, asked: ContractRequest) -> tuple[ContractOutcome, int]:
        self.scanned.reset_mock()
        read._FACTS.clear()
        with contract_check.kept_statistics(self.run, asked) as request:
            found = contract_worker.main(request, lambda report: None)
        return found, self.scanned.call_count


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checker:
    return Checker(tmp_path, monkeypatch)


def some(asked: ContractRequest, *at: int) -> ContractRequest:
    return asked.model_copy(update={"files": [asked.files[index] for index in at]})


def test_only_files_that_are_new_are_read_whatever_happened_between(request_: ContractRequest, check: Checker) -> None:
    assert check(some(request_, 0, 1))[1] == 2
    # One directory more each time, until one holds all.
    assert [check(some(request_, *range(count)))[1] for count in range(3, MOST_STATISTICS + 4)] == [1] * (
        MOST_STATISTICS + 1
    )
    turned = some(request_, *reversed(range(1, MOST_STATISTICS + 3)))
    whole, new = check(turned)
    assert new == 0
    assert canonical(whole.to_json()) == canonical(contract_worker.main(turned, lambda report: None).to_json())
    assert statistics_key(request_) != statistics_key(request_.model_copy(update={"sensitive": ["x"]}))


def test_a_group_is_copied_in_place_of_its_parts_which_stay_for_the_day_it_breaks(
    request_: ContractRequest, check: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics_records, "LARGEST", 4)
    monkeypatch.setattr(statistics_records, "USUAL", 2**40)
    whole = check(some(request_, *range(8)))[0]
    real, copied = check.store.read_sealed, []
    monkeypatch.setattr(
        check.store, "read_sealed", lambda manifest, name: copied.append(name) or real(manifest, name)
    )  # fmt: skip
    assert check(some(request_, *range(8))) == (whole, 0)
    assert [name.startswith("group-") for name in copied] == [True, True]
    # Two groups, new ones each day, until one directory holds all; then the first group breaks.
    assert [check(some(request_, *range(8 + day % 2), 8 + day % 4))[1] for day in range(4)] == [1] * 4
    assert check(some(request_, *range(1, 8)))[1] == 0


def test_what_is_in_use_is_written_again_once_in_so_many_checks(
    request_: ContractRequest, check: Checker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract_check, "MOST_STATISTICS", 3)
    for count in range(2, 11):
        check(some(request_, *range(count)))
    folders = sorted((tmp_path / "store" / "contracts").iterdir(), key=lambda path: int(path.name.rpartition("-")[2]))
    assert [len(list(folder.iterdir())) - 1 for folder in folders] == [2, 1, 1, 5, 1, 1, 8, 1, 1]


def test_a_part_can_be_read_by_its_owner_only_and_is_made_again_if_it_is_damaged(
    request_: ContractRequest, check: Checker, tmp_path: Path
) -> None:
    asked = some(request_, 0, 1)
    first, _ = check(asked)
    [folder] = (tmp_path / "store" / "contracts").iterdir()
    parts = [path for path in folder.iterdir() if path.name != "manifest.json"]
    assert len(parts) == 2
    for path in parts:
        assert path.stat().st_mode & 0o077 == 0
        path.chmod(0o600)
        path.write_bytes(path.read_bytes().replace(b'"rows":50', b'"rows":51'))
    again, new = check(asked)
    assert (new, again) == (2, first)


def test_a_part_that_another_user_alone_may_read_is_found_again(
    request_: ContractRequest, check: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = some(request_, 0, 1)
    first, _ = check(asked)
    refused = Mock(side_effect=UsageError("This user may not use contracts/…"))
    monkeypatch.setattr(check.store, "read_sealed", refused)
    assert check(asked) == (first, 2)


def test_a_check_that_another_overtakes_is_accepted_and_keeps_its_parts(
    request_: ContractRequest, check: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other seals its parts between this one's choice of an attempt and its first file."""
    real, overtaken = check.store.next_attempt, []

    def next_attempt(area: str, key: str) -> str:
        chosen = real(area, key)
        if not overtaken:
            overtaken.append(chosen)
            check(some(request_, 2, 3))
        return chosen

    monkeypatch.setattr(check.store, "next_attempt", next_attempt)
    found, _ = check(some(request_, 0, 1))
    assert found.accepted
    assert overtaken
    assert check(some(request_, 0, 1, 2, 3))[1] == 0


def test_nothing_is_kept_of_one_file_nor_where_rows_are_left_out(request_: ContractRequest) -> None:
    assert worth_it(request_)
    for update, why in [
        ({"files": request_.files[:1]}, "there is one file"),
        ({"quarantine": QuarantineSpec()}, "contract.quarantine compares all rows"),
        (
            {"window": ("2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"), "window_column": "at"},
            "data.window has a column",
        ),
        ({"profile": False}, "no profile is made of them"),
    ]:
        changed = request_.model_copy(update=update)
        assert (worth_it(changed), why_no_statistics(changed)) == (False, why)
