"""What lies in a store, with sizes and times, and what killed writers left where no name leads."""

from __future__ import annotations

import time

import pytest

from infra.store import Store


def test_files_are_listed_with_size_and_time_and_deleted_ones_are_not(store: Store) -> None:
    since = time.time()
    for path, data in (("runs/b/report.json", b"12"), ("runs/a.json", b"1"), ("models/m/1.json", b"123")):
        store.create(path, data)
    store.pointer("runs/a/latest").create({"x": 1})
    listed = store.stored("runs")
    assert [one.path for one in listed] == ["runs/a.json", "runs/a/latest", "runs/b/report.json"]
    assert [one.bytes for one in listed if one.path.endswith(".json")] == [1, 2]
    assert all(since - 2 <= one.written_s <= time.time() + 2 for one in listed)
    assert {one.path for one in store.stored("")} >= {"models/m/1.json", *(one.path for one in listed)}
    store.remove("runs/b", why="test", by="test")
    assert [one.path for one in store.stored("runs")] == ["runs/a.json", "runs/a/latest"]


def test_an_object_that_never_got_its_name_is_left_over_and_can_be_dropped(
    named_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = named_store._backend
    named_store.create("runs/kept.json", b"kept")
    with monkeypatch.context() as patched:

        def die(*_: object) -> None:
            raise KeyboardInterrupt

        patched.setattr(backend._names, "give", die)
        with pytest.raises(KeyboardInterrupt):
            named_store.create("runs/lost.json", b"lost!")
    [left] = named_store.leftovers()
    assert (left.path.startswith("objects/runs/lost.json/"), left.bytes) == (True, 5)
    backend.drop(left)
    assert named_store.leftovers() == []
    assert named_store.read("runs/kept.json") == b"kept"
