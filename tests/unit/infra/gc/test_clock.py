"""A machine whose clock is wrong deletes nothing that is being written: real processes under `faketime`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from infra.garbage import collect
from infra.store import Store, layout, open_store
from infra.store.database import NamedBackend
from tests.support.s3 import S3Server

# Opening a store sweeps what killed writers left, too.
COLLECT = """
import json, sys
from data_contracts.errors import TrainwrightError
from infra.garbage import collect
from infra.store import open_store
for uri, options in json.loads(sys.argv[1]):
    store = open_store(uri, options, create=False)
    for dry_run in (False, True):
        try:
            print(collect(store, by="a test", dry_run=dry_run))
        except TrainwrightError as error:
            print(f"{error.exit_code} {error}")
"""
KINDS = ("folder", "s3", "names in a database")
HALF = f"datasets/{'d' * 40}-0"


def made(kind: str, tmp_path: Path, server: S3Server) -> Store:
    """A store with a dataset that is being written."""
    if kind == "folder":
        store = open_store(str(tmp_path / "store"))
    else:
        pointers = f"sqlite:///{tmp_path}/names.db" if kind == "names in a database" else None
        store = open_store(f"s3://{server.bucket()}/a", server.options, pointers=pointers)
    store.writer(HALF).put("part-0", b"half")
    return store


def collected(stores: list[Store], shift: str) -> list[str]:
    """What a process whose clock is shifted says of each; files' times are the store's and stay what they are."""
    opened = json.dumps([[store.uri, store.storage_options] for store in stores])
    done = subprocess.run(
        ["faketime", "-f", shift, sys.executable, "-c", COLLECT, opened],
        env={**os.environ, "NO_FAKE_STAT": "1"}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.apt("faketime")
def test_a_clock_that_is_wrong_deletes_nothing(tmp_path: Path, s3_server: S3Server) -> None:
    stores = {kind: made(kind, tmp_path, s3_server) for kind in KINDS}
    backend = stores["names in a database"]._backend
    assert isinstance(backend, NamedBackend)
    backend._names.draft("objects/begun")
    backend._objects.create("objects/begun", b"half")
    (tmp_path / "store/.tmp/begun").write_bytes(b"half")
    for shift, words in (("+36h", "1 day.* ahead of"), ("-20m", "(20 min|19 min).* behind")):
        answers = collected([*stores.values()], shift)
        assert len(answers) == 2 * len(KINDS)
        for sentence in answers:
            assert re.match(f"2 This machine's clock is {words}", sentence), sentence
            assert sentence.endswith("Set the wrong clock (with NTP), then run gc again.")
    for kind, store in stores.items():
        assert store.list("datasets") == [HALF.partition("/")[2]]
        assert not store.exists(layout.tombstone(HALF))
        assert len(store.leftovers()) == (kind != "s3"), "what is being written is not swept either"
        assert collect(store, by="a test").deleted == [], "with the right clock"


def test_the_date_of_a_new_file_is_the_stores_time(tmp_path: Path, s3_server: S3Server) -> None:
    for kind in KINDS:
        store = made(kind, tmp_path, s3_server)
        (written,) = [one for one in store.stored() if one.path.startswith("datasets/")]
        assert 0 <= round(store.now_s() - written.written_s, 3) < 60
        assert (written.bytes, store.leftovers()) == (4, [])
        store.remove(HALF, why="test", by="test")
        assert [one.path for one in store.stored("datasets")] == []
