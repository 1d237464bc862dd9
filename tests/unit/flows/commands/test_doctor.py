"""`doctor`: what it checks, what it reports, and with which exit code."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from data_contracts.errors import StorageUnavailable
from flows.commands.doctor import _scratch, doctor
from infra.scratch import UNKNOWN_MAKER, Leftover
from infra.settings import remember_store
from infra.store import Store, layout, open_store


def told(name: str) -> tuple[int, list[tuple[bool, str]]]:
    """The exit code, and the checks of a name."""
    answer = doctor(argparse.Namespace(json=True))
    assert answer.value["ok"] is (answer.exit_code == 0)
    assert len(answer.text.splitlines()) == len(answer.value["checks"])
    return answer.exit_code, [(one["ok"], one["fact"]) for one in answer.value["checks"] if one["name"] == name]


def test_a_machine_that_will_do(home: Path) -> None:
    facts = {"state": f"state in {home}, mode 0700", "server": "no Prefect server runs",
             "worker": "no worker of ours runs"}  # fmt: skip
    assert {name: told(name) for name in facts} == {name: (0, [(True, fact)]) for name, fact in facts.items()}


@pytest.mark.root
def test_a_state_folder_of_another_user(home: Path) -> None:
    home.mkdir()
    os.chown(home, 65534, 65534)
    assert told("state") == (2, [(False, f"The state folder {home} belongs to another user (nobody)")])


def test_stores_that_answer_are_gone_or_are_damaged(home: Path, tmp_path: Path) -> None:
    for name in ("good", "gone", "damaged"):
        remember_store(open_store(str(tmp_path / name)).uri, {})
    assert told("store") == (0, [(True, f"{tmp_path / name} answers") for name in ("good", "gone", "damaged")])
    shutil.rmtree(tmp_path / "gone")
    damaged = tmp_path / "damaged" / layout.STORE
    damaged.unlink()
    damaged.write_text("[]")
    code, lines = told("store")
    assert (code, lines[0]) == (6, (True, f"{tmp_path / 'good'} answers"))
    assert [ok for ok, _ in lines] == [True, False, True]
    assert lines[2] == (True, "1 that were used before can no longer be opened from here")


def test_a_store_that_takes_no_writes(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remember_store(open_store(str(tmp_path / "full")).uri, {})
    monkeypatch.setattr(Store, "now_s", Mock(side_effect=StorageUnavailable("The store is full.")))
    assert told("store") == (5, [(False, "The store is full")])


def test_many_folders_that_were_left_behind_share_a_line() -> None:
    def left(count: int) -> list[str]:
        folders = [Leftover(Path(f"/a/{i}"), "", 60, UNKNOWN_MAKER) for i in range(count)]
        return [check.fact for check in _scratch(folders)]

    assert left(1) == [
        "/a/0, left behind, 0 bytes, 1 minute old: its maker is not known; remove it by hand if nothing uses it"
    ]
    assert left(4) == [
        "4 folders in /a, left behind, 0 bytes (--json lists them): their makers are not known; remove them by hand if "
        "nothing uses them"
    ]
