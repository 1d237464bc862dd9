"""Eight processes at once: exactly one wins each round, on a folder and on S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.store import Store
from tests.support.racers import RACERS, race
from tests.support.s3 import S3Server


@pytest.mark.parametrize("kind", ["create", "swap", "seal", "lease"])
def test_one_wins(store: Store, kind: str) -> None:
    rounds = 12 if store.is_local else 4
    if kind == "swap":
        store.pointer("pointer").create("first")
    won = race(kind, store.uri, store.storage_options, rounds)
    assert [sum(turn) for turn in won] == [1] * rounds
    if kind == "swap":
        assert store.pointer("pointer").read().version == 1 + rounds


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_all_open_a_new_store(kind: str, tmp_path: Path, s3: S3Server) -> None:
    uri, options = (str(tmp_path / "new"), {}) if kind == "folder" else (f"s3://{s3.bucket()}", s3.options)
    assert race("open", uri, options, 1) == [[True] * RACERS]
