"""Which canaries a run with a release key promotes: whoever can write the store can let any version stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.alias_moves import ALIAS
from infra.signing.keys import make_key_pair
from infra.store import open_store
from tasks.stages import approval
from tests.support.standing_canary import CanaryPlace


@pytest.mark.parametrize("began_with", ["no key", "another key", "the key"])
def test_the_release_key_promotes_only_a_canary_that_it_let_stand(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, began_with: str
) -> None:
    monkeypatch.setattr(approval, "refuse_unsigned_inputs", lambda *_: None)
    place = CanaryPlace(monkeypatch, open_store(str(tmp_path / "store")))
    keys = {name: f"file:{make_key_pair(tmp_path / name)[0]}" for name in ("the key", "another key")}
    place.more = {"sign": keys.get(began_with)}
    place.stands()  # as a writer of the store would have it, with terms and a version of their own
    place.more = {"sign": keys["the key"]}
    receipt = place.night(0, 300)
    if began_with == "the key":
        assert (receipt.decision, place.named(), place.named(ALIAS)) == ("promoted", 2, None)
        return
    assert place.named() != 2
    assert "but the release key did not let it stand" in place.history()[-2 if place.named(ALIAS) else -1].sentence
