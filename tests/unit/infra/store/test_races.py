"""Eight processes at once: exactly one wins each round, on a folder and on S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.store import open_store
from tests.support.racers import race
from tests.support.s3 import S3Server


@pytest.mark.parametrize(("kind", "rounds"), [("folder", 8), ("s3", 2)])
def test_one_wins(kind: str, rounds: int, tmp_path: Path, s3: S3Server) -> None:
    """All open the same new store first, so that its making is a race, too."""
    uri, options = (str(tmp_path / "new"), {}) if kind == "folder" else (f"s3://{s3.bucket()}", s3.options)
    kinds = ["create", "swap", "seal", "lease"]
    assert race(kinds, uri, options, rounds) == {kind: [1] * rounds for kind in kinds}
    store = open_store(uri, options, create=False)
    assert store.pointer("pointer").read().version == rounds
    assert store.list("") == ["datasets", *sorted(f"lease-{n}" for n in range(rounds)), "pointer", "race", "store.json"]
