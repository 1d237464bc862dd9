"""A store in a folder: what is synced, what is not a plain file, and what its `store.json` says."""

from __future__ import annotations

import errno
import itertools
import os
import socket
from pathlib import Path
from unittest.mock import Mock

import pytest

from data_contracts.errors import CorruptError, UsageError
from infra.store import Store, folder


def test_what_is_not_a_plain_file_is_refused_without_waiting_for_it(folder_store: Store, tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"theirs")
    Path(folder_store.uri, "link").symlink_to(tmp_path / "target")
    os.mkfifo(Path(folder_store.uri, "pipe"))
    Path(folder_store.uri, "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(Path(folder_store.uri, "socket")))
        for name, ask in itertools.product(
            ("link", "pipe", "socket", "folder"), (folder_store.read, folder_store.exists)
        ):
            with pytest.raises(CorruptError, match=f"^{name} is not a plain file") as raised:
                ask(name)
            assert raised.value.details == {"file": name}
    for name in ("none", "target/below"):
        with pytest.raises(FileNotFoundError):
            folder_store.read(name)


def test_a_file_system_without_links_is_said(folder_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder.os, "link", Mock(side_effect=PermissionError(errno.EPERM, "not permitted")))
    with pytest.raises(UsageError, match="has no hard links or locks, which a store needs"):
        folder_store.create("a", b"1")
    assert os.listdir(Path(folder_store.uri, ".tmp")) == []
