"""The database of a store's names, as far as no server is needed: its address, its clock and its password."""

from __future__ import annotations

import pytest

from data_contracts.errors import UsageError
from infra.store.database import Names
from tests.support.approved import approve_here


def test_postgresql_is_reached_with_the_password_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMES_PASSWORD", "a-secret")
    approve_here("postgresql://me:env:NAMES_PASSWORD@db/names", "env:NAMES_PASSWORD")
    names = Names("postgresql://me:env:NAMES_PASSWORD@db/names", "s3://b/p")
    assert (names._engine.url.drivername, names._engine.url.password) == ("postgresql+psycopg", "a-secret")
    assert "a-secret" not in names.database
    assert "clock_timestamp()" in str(names._now), "the transaction's own clock stands still"


def test_a_password_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMES_PASSWORD", raising=False)
    approve_here("postgresql://me:env:NAMES_PASSWORD@db/names", "env:NAMES_PASSWORD")
    with pytest.raises(
        UsageError, match=r"store\.pointers names the environment variable NAMES_PASSWORD, which is not set"
    ):
        Names("postgresql://me:env:NAMES_PASSWORD@db/names", "s3://b/p")
