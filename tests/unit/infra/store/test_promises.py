"""A server that honoured conditional writes when the store was made, and does not later, or not for two at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import UsageError
from flows.commands import doctor
from infra.processes.this_process import COUNTERS
from infra.settings import remember_store
from infra.store import PointerMoved, Store, check_promises, open_store, opening
from tests.support.s3 import S3Server

ALWAYS = 10**6


@pytest.fixture
def s3(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The server, on a machine that knows of none."""
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))
    yield s3_server
    s3_server.clear()


def made(s3: S3Server) -> Store:
    return open_store(f"s3://{s3.bucket()}/x", s3.options)


def opened(store: Store) -> Store:
    return open_store(store.uri, store.storage_options)


def test_a_server_that_checks_and_writes_in_two_steps_is_refused(s3: S3Server) -> None:
    s3.fault("split", method="PUT", times=ALWAYS, seconds=0.2)
    with pytest.raises(UsageError, match=r"does not honour conditional writes \(conditional_race\)"):
        made(s3)


def test_each_machine_tests_the_server_for_itself(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made(s3)
    s3.fault("ignore", times=ALWAYS)
    COUNTERS.take()
    opened(store)
    assert COUNTERS.take().put_requests == 0, "it was tested a moment ago"
    with monkeypatch.context() as later:
        later.setattr(opening, "TESTED_FOR_S", 0)
        with pytest.raises(UsageError, match="does not honour conditional writes"):
            opened(store)
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "other"))
    with pytest.raises(UsageError, match="does not honour conditional writes"):
        opened(store)
    open_store(store.uri, store.storage_options, create=False)  # a node, which decides nothing


def test_doctor_tests_it_again(s3: S3Server) -> None:
    store = made(s3)
    remember_store(store.uri, store.storage_options)
    assert [check.ok for check in doctor._stores()] == [True]
    s3.fault("ignore", times=ALWAYS)
    [check] = doctor._stores()
    assert (check.ok, check.exit_code) == (False, 2)
    assert "does not honour conditional writes" in check.fact
    with pytest.raises(UsageError):
        check_promises(store)


def test_who_may_only_read_overwrites_nothing(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made(s3)
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "other"))
    s3.fault("refuse", method="PUT", times=ALWAYS, status=403, code="AccessDenied")
    assert opened(store).list("") == ["store.json"]
    assert opening._tested() == {}, "it is tested as soon as this user may write"


def between(store: Store, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another writer act after the next write of `store` was confirmed, and before it is read back."""
    head = store._backend._head

    def first(path: str) -> Any:
        monkeypatch.setattr(store._backend, "_head", head)
        act()
        return head(path)

    monkeypatch.setattr(store._backend, "_head", first)


def test_of_two_that_a_server_lets_write_one_goes_on(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mine, theirs = (made(s3),) * 2
    theirs = opened(mine)
    read = mine.pointer("p").create("old")
    s3.fault("ignore", method="PUT", times=ALWAYS)
    won: list[object] = []
    between(mine, lambda: won.append(theirs.pointer("p").swap(read, "theirs").value), monkeypatch)
    with pytest.raises(PointerMoved) as moved:
        mine.pointer("p").swap(read, "mine")
    assert (won, moved.value.current.value if moved.value.current else None) == (["theirs"], "theirs")
    for create in (lambda store: store.create_once("a", {"by": id(store)}), lambda store: store.create_once("b", b"")):
        between(mine, lambda create=create: won.append(create(theirs)), monkeypatch)  # type: ignore[misc]
        assert create(mine) is False
    assert won[1:] == [True, True]
    assert sum("confirmed two conditional writes" in record.getMessage() for record in caplog.records) == 3


def test_who_was_followed_by_another_is_told_what_the_pointer_holds(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been overwritten before that, which the later value does not say."""
    mine = made(s3)
    theirs = opened(mine)
    read = mine.pointer("p").create("old")
    between(mine, lambda: theirs.pointer("p").swap(theirs.pointer("p").read(), "next"), monkeypatch)
    with pytest.raises(PointerMoved) as moved:
        mine.pointer("p").swap(read, "mine")
    assert moved.value.current == mine.pointer("p").read()
    assert mine.pointer("p").read().value == "next"  # type: ignore[union-attr]
