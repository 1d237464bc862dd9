"""The password of our server: random, kept, replaced, and readable by its owner alone."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from infra.files import TAG
from infra.orchestrator import server
from tests.support.files import umask


def test_a_password_is_made_once_and_anew_after_it_was_deleted(home: Path) -> None:
    assert server.read_password() is None
    first = server.ensure_password()
    assert first.startswith("trainwright:")
    assert len(first) > 50
    assert server.ensure_password() == server.read_password() == first
    server.forget_password()
    server.forget_password()
    assert server.read_password() is None
    assert server.ensure_password() != first


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_chosen_password_is_kept_and_only_its_owner_can_read_it_whatever_the_umask(home: Path, mask: int) -> None:
    with umask(mask):
        server.ensure_password()
        assert server.ensure_password("me:mine") == server.ensure_password() == server.read_password() == "me:mine"
    assert stat.S_IMODE(server.password_path().stat().st_mode) == 0o600
    assert sorted(entry.name for entry in home.iterdir()) == [TAG, "password"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_password_that_others_may_have_read_is_not_used(home: Path, mode: int) -> None:
    server.ensure_password()
    server.password_path().chmod(mode)
    for use in (server.read_password, server.ensure_password):
        with pytest.raises(UsageError, match="may have read") as caught:
            use()
        assert "trainwright up" in caught.value.remedy
        assert "trainwright:" not in str(caught.value)
