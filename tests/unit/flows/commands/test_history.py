"""`history` tells each move of an alias, and the note that a rollback leaves: reason, evidence, both versions."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from data_contracts.handoffs import Receipt
from infra.models import registry
from infra.store import Store, layout, open_store
from tests.support.commands import output_of
from tests.support.damage import HARMS, overwrite
from tests.support.tiny import complaints


@pytest.fixture
def store(repository: Path, current_folder: Path, home: Path) -> Store:
    """The store of the current folder, in which two versions were promoted: the golden one before its rollback."""
    copy = Path(shutil.copytree(repository / "tests/golden/store-v1/store", current_folder / ".trainwright"))
    store = open_store(str(copy), create=False)
    shutil.rmtree(copy / "aliases/tiny/history/champion/2")
    refs = {"model_version": "models/tiny/2", "receipt": "aliases/tiny/history/champion/1"}
    value = {name: store.manifest(uri).ref.to_json() for name, uri in refs.items()}
    overwrite(copy / "aliases/tiny/champion", json.dumps({"schema": 1, "value": {**value, "version": 2}, "version": 2}))
    return store


def test_history_tells_who_moved_an_alias_from_which_version_to_which_and_why(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence = ["--evidence", "https://pages.example/r/7", "--evidence", "7 of 9"]
    output_of(capsys, "rollback", "tiny", "--reason", "recall fell", *evidence)
    page = output_of(capsys, "history", "tiny@champion").splitlines()
    assert page[0] == "tiny@champion is version 1: 3 entries"
    rows = [re.split(" {2,}", line.strip()) for line in page[3:6]]
    assert [row[3] for row in rows] == ["– → 1", "1 → 2", "2 → 1"]
    actor = registry.moves(store, "tiny", "champion")[0][1]["actor"]
    assert all(row[1:3] == [actor, "cli"] for row in rows)
    note = "\n".join(page[7:])
    told = json.loads(output_of(capsys, "history", "tiny", "--json"))["aliases"]["champion"]
    first, second, back = told["moves"]
    assert [one["kind"] for one in told["moves"]] == ["promoted", "promoted", "rolled back"]
    incident = back["incident"]
    assert (incident["reason"], incident["evidence"]) == ("recall fell", ["https://pages.example/r/7", "7 of 9"])
    assert (incident["left"]["version"], incident["back"]["version"]) == (2, 1)
    assert (incident["left"]["run_id"], incident["back"]["run_id"]) == (second["run_id"], first["run_id"])
    assert (incident["left"]["since"], len(incident["left"]["gates"])) == (second["at"], 2)
    files = store.manifest(registry.read_version(store, "tiny", 1).checkpoint.ref).files
    assert (incident["checked_files"], incident["checked_bytes"]) == (len(files), sum(one.bytes for one in files))
    scores = f"accuracy: {incident['left']['metrics']['accuracy']:.4g} → "
    checked = f"{incident['checked_bytes']:,} bytes"
    for words in ("reason      recall fell", "evidence    7 of 9", second["run_id"], checked, scores, "on hold: "):
        assert words in note
    assert [one["version"] for one in told["held"]] == [2]


def test_an_entry_that_moves_nothing_is_told_and_kept(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    output_of(capsys, "rollback", "tiny")
    output_of(capsys, "release", "tiny", "--reason", "looked again")
    moves = json.loads(output_of(capsys, "history", "tiny@champion", "--json"))["aliases"]["champion"]["moves"]
    assert [(one["kind"], one["before"], one["after"]) for one in moves[2:]] == [("rolled back", 2, 1), ("kept", 1, 1)]
    assert moves[3]["sentence"].endswith('"looked again"')
    assert moves[2]["incident"]["reason"] == ""
    assert "reason      none was given" in output_of(capsys, "history", "tiny")


@pytest.mark.parametrize("name", ["tiny@nothing", "tiny@history", "tiny@../../x", "nothing"])
def test_an_alias_that_is_not_there(store: Store, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = complaints(output_of(capsys, "history", name, code=2))
    assert "Traceback" not in answer
    assert len(answer.strip().splitlines()) <= 2


@pytest.mark.parametrize("harm", ["bit", "gone"])
def test_a_rollback_to_a_version_that_is_not_whole_moves_nothing(
    store: Store, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = registry.read_version(store, "tiny", 1).checkpoint.ref
    largest = max(store.manifest(ref).files, key=lambda one: one.bytes).path
    file = Path(store.uri) / ref.uri / (largest if harm == "bit" else layout.MANIFEST)
    HARMS[harm](file, file)
    assert ref.uri in output_of(capsys, "rollback", "tiny", "--reason", "why", code=6)
    assert len(registry.history(store, "tiny", "champion")) == 2
    assert registry.read_alias(store, "tiny", "champion")[1] == 2


def test_old_scores_that_are_gone_do_not_keep_an_alias_from_going_back(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    (Path(store.uri) / registry.read_version(store, "tiny", 1).evaluation.uri / layout.MANIFEST).unlink()
    output_of(capsys, "rollback", "tiny", "--reason", "why")
    assert registry.history(store, "tiny", "champion")[-1].incident.back.metrics == {}
    assert "→ not scored" in output_of(capsys, "history", "tiny")


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (["a\x1b[2J"], "--evidence: '\\x1b' is not printable"),
        ([""], "--evidence: 0 characters"),
        (["x"] * 21, "21 times"),
    ],
)
def test_what_is_wrong_with_evidence_is_said(
    store: Store, evidence: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [word for one in evidence for word in ("--evidence", one)]
    assert words in output_of(capsys, "rollback", "tiny", *options, code=2)
    assert len(registry.history(store, "tiny", "champion")) == 2


def test_a_receipt_without_a_note_is_written_as_before() -> None:
    plain = {"decision": "promoted", "model": "m", "alias": "a", "version": 1, "previous": None, "sentence": "."}
    assert "incident" not in Receipt.from_json(plain).to_json()
