"""Canaries in a store: what is damaged or missing is said, and rows come back as they were stored."""

from __future__ import annotations

import numpy as np
import pytest

from data_contracts.errors import CorruptError
from infra.models import canaries
from infra.store import layout
from tests.support.standing_canary import CanaryPlace


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> CanaryPlace:
    return CanaryPlace(monkeypatch)


def test_rows_are_named_by_what_is_in_them(place: CanaryPlace) -> None:
    canary = place.stands()
    digests = np.array([9, 2**63, 9, 1], np.uint64)
    name = canaries.put_rows(place.store, canary, digests)
    assert name == canaries.put_rows(place.store, canary, digests[::-1])
    assert canaries.read_rows(place.store, canary, name).tolist() == [1, 9, 2**63]
    assert canaries.put_rows(place.store, canary, np.empty(0, np.uint64)) != name


@pytest.mark.parametrize("harm", ["changed", "missing"])
def test_rows_that_are_not_as_they_were_written(place: CanaryPlace, harm: str) -> None:
    canary = place.stands()
    name = canaries.put_rows(place.store, canary, np.arange(3, dtype=np.uint64))
    path = layout.canary_rows("tiny", canary.k, name)
    files = place.raced._inner.files
    if harm == "missing":
        del files[path]
    else:
        files[path] = b"\x01" + files[path][0][1:], files[path][1]
    with pytest.raises(CorruptError, match=rf"{path} is "):
        canaries.read_rows(place.store, canary, name)


def test_the_rows_of_a_dataset_are_kept_under_its_id(place: CanaryPlace) -> None:
    canary = place.stands()
    assert canaries.seen_digests(place.store, canary, "a" * 64) is None
    canaries.put_seen(place.store, canary, "a" * 64, np.array([5, 3], np.uint64))
    found = canaries.seen_digests(place.store, canary, "a" * 64)
    assert found is not None
    assert found.tolist() == [3, 5]
    with pytest.raises(CorruptError, match="another dataset"):
        canaries.seen_digests(place.store, canary, "a" * 40 + "b" * 24)


def test_a_tally_that_is_missing_is_said(place: CanaryPlace) -> None:
    canary = place.stands()
    place.night(0, 10)
    place.night(10, 10)
    del place.raced._inner.files[layout.canary_batch("tiny", canary.k, 1, 0)]
    with pytest.raises(CorruptError, match=r"nights/1/0\.json is missing, although there is a later one"):
        canaries.observation_batches(place.store, canary, 1)


def test_more_rows_than_a_file_holds_are_in_several(place: CanaryPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = place.stands()
    monkeypatch.setattr(canaries, "MOST_IN_FILE", 2)
    digests = np.array([9, 2**63, 9, 1, 4, 5], np.uint64)
    canaries.put_seen(place.store, canary, "a" * 64, digests)
    found = canaries.seen_digests(place.store, canary, "a" * 64)
    assert found is not None
    assert found.tolist() == [1, 4, 5, 9, 2**63]
    name = canaries.put_rows(place.store, canary, digests)
    paths = [layout.canary_rows("tiny", canary.k, f"{name}-{number}") for number in range(3)]
    assert [len(place.store.read(path)) for path in paths] == [16, 16, 8]
    del place.raced._inner.files[paths[1]]
    with pytest.raises(CorruptError, match=rf"{paths[1]} is missing"):
        canaries.read_rows(place.store, canary, name)
    with pytest.raises(CorruptError, match="is not a name of rows"):
        canaries.read_rows(place.store, canary, f"x{name}")
