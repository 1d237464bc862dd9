"""`protect`: the decisions about an alias are kept, shown, and can be ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infra.approvals import protection, protections
from infra.signing.keys import make_key_pair
from infra.store import Store
from tests.support.commands import output_of


def said(store: Store, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    return output_of(capsys, "protect", *words, "--store", store.uri, code=code)


def test_an_alias_is_protected_before_its_model_exists(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    printed = said(store, capsys, "digits", "--reason", "it is in the shop")
    assert printed.startswith("digits@champion is protected: each promotion needs an approval")
    assert "has no model digits yet: check the name" in printed, "a mistyped name protects nothing that anybody uses"
    found = protection(store, "digits", "champion")
    assert (found.by, found.reason) == ("ada", "it is in the shop")
    assert protection(store, "digits", "other") is None


def test_protection_ends_and_its_records_stay(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    said(store, capsys, "digits@live", "--reason", "first")
    ended = json.loads(said(store, capsys, "digits@live", "--off", "--reason", "moved", "--json"))
    assert (ended["protected"], ended["reason"]) == (False, "moved")
    assert protection(store, "digits", "live") is None
    assert [one.protected for one in protections(store, "digits", "live")] == [True, False]
    assert "digits@live is not protected." in said(store, capsys, "digits@live", "--off", "--reason", "x", code=2)


def test_approvers_keys(store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    private, public = make_key_pair(tmp_path / "keys")
    printed = said(store, capsys, "digits", "--key", str(public), "--key", str(public), "--reason", "signed only")
    assert printed.startswith("digits@champion is protected: each promotion needs a signed approval")
    found = protection(store, "digits", "champion")
    assert found.keys == [public.read_text()]
    assert "is a private key" in said(store, capsys, "digits", "--key", str(private), "--reason", "x", code=2)
    both = said(store, capsys, "digits", "--off", "--key", str(public), "--reason", "x", code=2)
    assert "--off and --key were given" in both
    assert protection(store, "digits", "champion") == found


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["digits@history", "--reason", "x"], "digits@history cannot be a model and its alias."),
        (["../x", "--reason", "x"], "../x cannot be a model and its alias."),
        (["digits", "--reason", ""], "--reason: 0 characters were given."),
        (["digits"], "the following arguments are required: --reason"),
    ],
)
def test_bad_input(store: Store, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str) -> None:
    assert sentence in said(store, capsys, *words, code=2)
    assert store.list("protections") == []
