"""What lies in a store, with sizes and times, and what killed writers left where no name leads."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from infra.store import Store


def test_an_object_that_never_got_its_name_is_left_over_and_can_be_dropped(
    named_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = named_store._backend
    named_store.create("runs/kept.json", b"kept")
    with monkeypatch.context() as patched:
        patched.setattr(backend._names, "give", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            named_store.create("runs/lost.json", b"lost!")
    [left] = named_store.leftovers()
    assert (left.path.startswith("objects/runs/lost.json/"), left.bytes) == (True, 5)
    backend.drop(left)
    assert named_store.leftovers() == []
    assert named_store.read("runs/kept.json") == b"kept"
