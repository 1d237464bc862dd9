"""The state folder is this user's alone, and a private file is private from its first byte."""

from __future__ import annotations

import os
import stat
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from data_contracts.errors import UsageError
from infra.files import TAG, replace_private
from infra.settings import is_private_place, known_stores, remember_store, state_folder
from tests.support.files import umask


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("before", [None, 0o755, 0o777, 0o770, 0o2750])
def test_the_state_folder_is_closed_to_others(home: Path, before: int | None) -> None:
    if before is not None:
        home.mkdir()
        home.chmod(before)
    with umask(0):
        assert state_folder() == home
    assert mode(home) & 0o777 == 0o700


@pytest.mark.parametrize(
    ("xdg", "folder"),
    [
        (None, "me/.local/state/trainwright"),
        ("", "me/.local/state/trainwright"),
        ("{}/state", "state/trainwright"),
    ],
)
def test_the_state_folder_lies_where_linux_has_it(
    xdg: str | None, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    for name in ("TRAINWRIGHT_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    if xdg is not None:
        monkeypatch.setenv("XDG_STATE_HOME", xdg.format(tmp_path))
    assert state_folder() == tmp_path / folder
    assert mode(tmp_path / folder) == 0o700
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "named"))
    assert state_folder() == tmp_path / "named"


@pytest.mark.root
def test_a_state_folder_of_another_user_is_refused(home: Path) -> None:
    home.mkdir()
    os.chown(home, 65534, 65534)
    with pytest.raises(UsageError) as raised:
        state_folder()
    assert raised.value.message == f"The state folder {home} belongs to another user (nobody)."
    assert raised.value.remedy == "Name another with TRAINWRIGHT_HOME."


def test_a_private_file_was_never_readable_by_others(home: Path) -> None:
    with umask(0):
        path = state_folder() / "secret"
        path.write_text("older")
        replace_private(path, "a")
        remember_store("/store", {"key": "env:KEY"})
    assert (mode(path), path.read_text()) == (0o600, "a")
    assert (mode(home / "stores.json"), known_stores()[-1]["uri"]) == (0o600, "/store")
    assert sorted(one.name for one in home.iterdir()) == [TAG, "secret", "stores.json"]


def test_a_draft_that_lies_in_the_way_is_not_written_through(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").write_text("theirs")
    monkeypatch.setattr("secrets.token_hex", lambda size: "guessed")
    (state_folder() / ".secret.guessed").symlink_to(tmp_path / "theirs")
    with pytest.raises(FileExistsError):
        replace_private(home / "secret", "mine")
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert sorted(one.name for one in home.iterdir()) == [".secret.guessed", TAG], "what is not ours stays"


@pytest.mark.parametrize(("bits", "private"), [(0o700, True), (0o1777, True), (0o755, True), (0o777, False)])
def test_a_place_is_private_where_nobody_else_can_rename(tmp_path: Path, bits: int, private: bool) -> None:
    tmp_path.chmod(bits)
    assert is_private_place(tmp_path) is private
    assert not is_private_place(tmp_path / "not there")
    (tmp_path / "below").mkdir(mode=0o700)
    assert is_private_place(tmp_path / "below") is private, "who can rename the folder above can replace this one"


@pytest.mark.root
@pytest.mark.parametrize(("bits", "private"), [(0o2775, False), (0o2755, True), (0o3775, True)])
def test_a_place_is_not_private_where_others_of_its_group_can_rename(tmp_path: Path, bits: int, private: bool) -> None:
    os.chown(tmp_path, 0, 65534)
    tmp_path.chmod(bits)
    assert is_private_place(tmp_path) is private


def test_a_group_that_is_this_users_alone_is_not_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = SimpleNamespace(pw_name="me", pw_gid=tmp_path.stat().st_gid)
    monkeypatch.setattr("infra.settings.pwd.getpwuid", lambda uid: user)
    tmp_path.chmod(0o775)
    for name, members, private in (
        ("me", [], True),
        ("me", ["me"], True),
        ("me", ["you"], False),
        ("staff", [], False),
    ):
        group = SimpleNamespace(gr_name=name, gr_mem=members)
        monkeypatch.setattr("infra.settings.grp.getgrgid", lambda gid, group=group: group)
        assert is_private_place(tmp_path) is private, (name, members)


@pytest.mark.skipif(sys.platform != "linux", reason="needs POSIX access lists")
@pytest.mark.parametrize(("rights", "private"), [(7, False), (5, True)])
def test_an_access_list_lets_others_rename_who_are_not_of_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rights: int, private: bool
) -> None:
    monkeypatch.setattr("infra.settings._has_own_group", lambda gid: True)
    nobody, unnamed = 65534, 2**32 - 1
    # Owner, user nobody, group, mask (which the mode shows as the group's bits), others.
    entries = [(1, 7, unnamed), (2, rights, nobody), (4, 0, unnamed), (16, rights, unnamed), (32, 0, unnamed)]
    made = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(tmp_path, "system.posix_acl_access", made)
    except OSError:
        pytest.skip("this file system has no access lists")
    assert is_private_place(tmp_path) is private
