"""A proof over many raw files: each is read once, and none is looked for in a list that grows with them."""

from __future__ import annotations

from typing import Any

import pytest

from data_contracts.handoffs import SourceFile
from infra.sources.named_places import NO_PLACES
from tasks.queries import proof as proof_module
from tasks.queries.proof import Proof, _check_raw


class Growing(list[str]):
    """A list of as many entries as there are files: to look something up in it takes that many steps."""

    def __contains__(self, one: Any) -> bool:
        raise AssertionError(f"{one} is looked for in a list of {len(self)}")


def test_raw_files_are_found_among_those_checked_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def digests(files: list[SourceFile], *_: Any) -> list[str | None]:
        read.extend(file.uri for file in files)
        return [None if file.uri.endswith("3.csv") else file.blake3 for file in files]

    monkeypatch.setattr(proof_module, "digests_now", digests)
    raw = [
        SourceFile(uri=f"/data/{at}.csv", bytes=1, blake3=f"{at:064}", format="csv", source=0).to_json()
        for at in range(40)
    ]
    proof = Proof("m", 1, None, raw_checked=Growing(), gone=Growing())
    seen: set[str] = set()
    for _ in range(2):
        _check_raw({"raw": raw, "raw_sources": [{"uri": "/data/*.csv"}]}, proof, seen, NO_PLACES)
    assert len(read) == 40
    assert (len(proof.raw_checked), proof.gone) == (36, ["/data/3.csv", "/data/13.csv", "/data/23.csv", "/data/33.csv"])
