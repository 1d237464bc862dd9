"""A collection that meets a link deletes nothing: what only the linked part names would be taken for unreached."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.errors import CorruptError
from infra.garbage import Limits, collect
from infra.store import open_store
from tests.support.histories import OLD_S, History


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("area", ["runs", "trainings", "aliases", "uses"])
def test_a_link_in_the_census(tmp_path: Path, area: str, depth: int) -> None:
    """At any depth, as of an administrator who moved `runs/` to another disk."""
    root = tmp_path / "store"
    history = History(open_store(str(root)))
    training = history.training(OLD_S, history.sealed("datasets", OLD_S), history.sealed("code", OLD_S), done=False)
    history.run(OLD_S, history.sealed("code", OLD_S), {}, exit_code=7)
    history.promote(OLD_S, history.version(OLD_S, training, history.sealed("evaluations", OLD_S)))
    unreached = history.sealed("datasets", OLD_S)
    history.store.create(f"uses/{unreached}/2020-01-01", b"")
    history.ageing()
    place = root / area
    for _ in range(depth - 1):
        place = min(place.iterdir())
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.rglob("*"))
    for dry_run in (True, False):
        with pytest.raises(CorruptError) as raised:
            collect(open_store(str(root)), by="a test", limits=Limits(keep_s=0, grace_s=0), dry_run=dry_run)
        assert raised.value.exit_code == 6
        assert raised.value.message == f"{place.relative_to(root)} in the store {root} is a link."
        assert sorted(tmp_path.rglob("*")) == before
