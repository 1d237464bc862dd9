"""The benchmark of a store of many runs: its copies of a run are runs, as far as a census can tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.garbage import note_names, take_census
from infra.store import layout, open_store
from tests.support.counted import away
from tests.support.histories import YOUNG_S, History


def test_what_a_run_names_is_written_down_for_each_copy(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    import many_runs

    store = open_store(str(tmp_path / "store"))
    history = History(store)
    history._count = 100  # the ids of the copies end in 1 to 29
    run_id = history.run(YOUNG_S, history.sealed("code", YOUNG_S), {}, exit_code=None).removeprefix("runs/")
    store.create_json(layout.report(run_id), {"exit_code": 0, "pipeline": "p"})
    note_names(store, run_id, 0, f"key-{run_id}")
    many_runs.multiply(tmp_path / "store", 30)
    apart, backend = away(store)
    found = take_census(apart)
    runs = [one for one in found if one.kind == "run"]
    assert len(runs) == 30
    assert not any(one.broken or one.root for one in found)
    assert {names for one in found if one.kind == "trigger" for names in one.names} == {one.uri for one in runs}
    # Two listings, the bundle of code, and the names of each run.
    assert backend.alone + backend.together == 3 + 30
