"""The store of a game day: beside the pipeline's, under a name of its own, and gone at the end."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from infra.store import Store, open_store, opening
from infra.store.opening import address_beside, own_store
from tests.support.s3 import S3Server


@pytest.mark.parametrize(
    ("address", "beside"),
    [
        ("/data/.trainwright", "/data/.trainwright-gameday-n1"),
        ("/data/store/", "/data/store-gameday-n1"),
        ("s3://bucket/team", "s3://bucket/team-gameday-n1"),
        ("s3://bucket", "s3://bucket/gameday-n1"),
    ],
)
def test_it_stands_beside_the_pipelines_store(address: str, beside: str) -> None:
    assert address_beside(address, "n1") == beside


@pytest.mark.parametrize("fails", [False, True])
def test_it_is_removed_however_the_game_day_ends(fails: bool, tmp_path: Path) -> None:
    mine = open_store(str(tmp_path / "mine"))
    ends = pytest.raises(KeyboardInterrupt) if fails else contextlib.nullcontext()
    with ends, own_store(mine.uri, {}, "n1") as store:
        store.create("trainings/k-0/x", b"x")
        assert len(list(tmp_path.glob("mine-gameday-n1"))) == 1
        if fails:
            raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_nothing_stays_in_the_bucket_not_even_what_a_killed_rank_had_begun_to_send(
    s3_server: S3Server,
) -> None:
    uri = f"s3://{s3_server.bucket()}/team"
    mine = open_store(uri, s3_server.options)
    with own_store(uri, s3_server.options, "n1") as store:
        store.create("trainings/k-0/x", b"x")
        for one in (mine, store):
            one._backend._call("create_multipart_upload", "trainings/k-0/checkpoints/weights")
    assert (store.stored(), store.leftovers()) == ([], [])
    assert ([file.path for file in mine.stored()], len(mine.leftovers())) == (["store.json"], 1)


def test_a_store_that_cannot_be_made_is_refused_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(uri: str, options: dict[str, str], *, create: bool = True) -> Store:
        raise UsageError("It does not honour conditional writes." if create else f"There is no store at {uri}.")

    monkeypatch.setattr(opening, "open_store", refused)
    with pytest.raises(UsageError, match="conditional writes"), own_store("s3://bucket/team", {}, "n1"):
        raise AssertionError("there is no store")
