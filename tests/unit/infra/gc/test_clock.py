"""A machine whose clock is wrong deletes nothing that is being written: real processes under `faketime`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from infra.store import Store, layout, open_store
from infra.store.backends.database_backend import NamedBackend
from tests.support.s3 import S3Server

# Opening a store sweeps what killed writers left, too.
COLLECT = """
import json, sys
from data_contracts.errors import TrainwrightError
from infra.gc import collect
from infra.store import open_store
store = open_store(sys.argv[1], json.loads(sys.argv[2]), create=False)
try:
    done = collect(store, by="a test", dry_run=sys.argv[3] == "dry")
    print(0, [one.item.uri for one in done.deleted])
except TrainwrightError as error:
    print(error.exit_code, error)
"""
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


def collected(store: Store, shift: str, how: str = "") -> str:
    """The output of a process whose clock is shifted; the files' times are the store's and stay what they are."""
    command = [sys.executable, "-c", COLLECT, store.uri, json.dumps(store.storage_options), how]
    done = subprocess.run(
        ["faketime", "-f", shift, *command], env={**os.environ, "NO_FAKE_STAT": "1"}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.apt("faketime")
@pytest.mark.parametrize("kind", ["folder", "s3", "names in a database"])
def test_a_clock_that_is_wrong_deletes_nothing(kind: str, tmp_path: Path, s3_server: S3Server) -> None:
    store = made(kind, tmp_path, s3_server)
    backend = store._backend
    if isinstance(backend, NamedBackend):
        backend._names.draft("objects/begun")
        backend._objects.create("objects/begun", b"half")
    elif kind == "folder":
        (tmp_path / "store/.tmp/begun").write_bytes(b"half")
    for shift, how, words in (("+36h", "", "1 day"), ("+36h", "dry", "1 day"), ("-20m", "", "20 min|19 min")):
        told = collected(store, shift, how)
        assert re.match(f"2 This machine's clock is ({words})", told), told
        assert ("ahead of" if shift[0] == "+" else "behind") in told
        assert told.endswith("Set the wrong clock (with NTP), then run gc again.")
    assert store.list("datasets") == [HALF.partition("/")[2]]
    assert not store.exists(layout.tombstone(HALF))
    assert len(store.leftovers()) == (kind != "s3"), "what is being written is not swept either"
    assert collected(store, "+0") == "0 []"


def test_the_date_of_a_new_file_is_the_stores_time(tmp_path: Path, s3_server: S3Server) -> None:
    for kind in ("folder", "s3", "names in a database"):
        store = made(kind, tmp_path, s3_server)
        (written,) = [one for one in store.stored() if one.path.startswith("datasets/")]
        assert 0 <= round(store.now_s() - written.written_s, 3) < 60
        assert store.leftovers() == []
