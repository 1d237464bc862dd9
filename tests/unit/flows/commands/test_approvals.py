"""`approve` and `refuse` on runs that wait, and on runs that do not: one sentence each, and the exit code."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from data_contracts.approvals import Question
from data_contracts.handoffs import GateResult
from flows.cli import main
from infra.approvals import ask, latest_question
from infra.signing.keys import make_key_pair
from infra.store import Store, layout, open_store
from tasks.stages.approval import protect
from tests.support.commands import output_of
from tests.support.reported import PROMOTED, WAITING, reported_store
from tests.unit.data_contracts.test_approvals import question

LONG_AGO = "2026-01-01T00:00:00+00:00"


@pytest.fixture
def store(tmp_path: Path, home: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("TRAINWRIGHT_ACTOR", "ada")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    return open_store(str(reported_store(repository / "tests/golden/store-v1", tmp_path)), create=False)


def asked(store: Store, **changes: object) -> Question:
    return ask(store, question(**{"run_id": WAITING, "deadline": "2126-01-01T00:00:00+00:00", **changes}))


def said(store: Store, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    return output_of(capsys, *words, "--store", store.uri, code=code)


def test_an_answer_is_written_once_and_says_how_the_run_continues(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    told = asked(store)
    value = json.loads(said(store, capsys, "approve", WAITING, "--reason", "looks  good", "--json"))
    assert (value["run_id"], value["resumed"]) == (WAITING, [])
    assert value["answer"] == {**value["answer"], "by": "ada", "via": "cli", "reason": "looks good"}
    assert value["answer"]["question"] == told.digest
    kept = store.read_json(layout.answer(WAITING, 0))
    assert kept == value["answer"]
    for command in ("approve", "refuse"):
        again = said(store, capsys, command, WAITING, "--reason", "again", code=2)
        assert f"The question of the run {WAITING} is answered already: ada approved it at " in again
    assert store.read_json(layout.answer(WAITING, 0)) == kept


def test_no_text_of_a_question_looks_like_a_line_of_it(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    asked(store, pipeline="digits\n  gate       met: accuracy 0.99")
    assert main(["refuse", WAITING, "--reason", "no", "--store", store.uri]) == 0
    [line] = [line for line in capsys.readouterr().err.splitlines() if "met: accuracy 0.99" in line]
    assert line.startswith(f"The run {WAITING} of digits\\n  gate ")


def test_refuse(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    asked(store)
    printed = said(store, capsys, "refuse", WAITING, "--reason", "October is missing")
    expected = f'ada refused the candidate of the run {WAITING}: "October is missing"; `trainwright resume {WAITING}` '
    assert printed == f"{expected}continues the run\n"
    assert "ada refused it at " in said(store, capsys, "approve", WAITING, "--reason", "but", code=2)


def test_the_latest_question_is_answered(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    asked(store)
    second = asked(store, n=1)
    said(store, capsys, "approve", WAITING, "--reason", "seen")
    assert not store.exists(layout.answer(WAITING, 0))
    assert store.read_json(layout.answer(WAITING, 1))["question"] == second.digest


def test_an_answer_after_the_deadline(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    asked(store, asked_at=LONG_AGO, deadline=LONG_AGO)
    for command in ("approve", "refuse"):
        late = said(store, capsys, command, WAITING, "--reason", "seen", code=4)
        assert "nobody answered before the deadline 2026-01-01 00:00 UTC" in late
    assert store.read_json(layout.answer(WAITING, 0))["decision"] == "expired"


BAD = [
    ([PROMOTED, "--reason", "seen"], f"The run {PROMOTED} does not wait for an answer: it ended promoted."),
    ([WAITING, "--reason", "seen"], f"The run {WAITING} does not wait for an answer"),
    (["20991231-000000-ffffff", "--reason", "seen"], "There is no run 20991231-000000-ffffff in "),
    (["../../x", "--reason", "seen"], "There is no run ../../x in "),
    ([WAITING], "the following arguments are required: --reason"),
    ([WAITING, "--reason", " "], "--reason: 0 characters were given."),
    ([WAITING, "--reason", "x" * 501], "--reason: 501 characters were given."),
    ([WAITING, "--reason", "a\x1bb"], "'\\x1b' is not printable"),
]


@pytest.mark.parametrize("command", ["approve", "refuse"])
@pytest.mark.parametrize(("words", "sentence"), BAD, ids=range(len(BAD)))
def test_bad_input(
    store: Store, capsys: pytest.CaptureFixture[str], command: str, words: list[str], sentence: str
) -> None:
    assert sentence in said(store, capsys, command, *words, code=2)
    assert latest_question(store, WAITING) is None


def test_a_name_that_cannot_be_stored(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(store)
    monkeypatch.setenv("TRAINWRIGHT_ACTOR", "x" * 101)
    assert "cannot be the name of whoever answers" in said(store, capsys, "approve", WAITING, "--reason", "y", code=2)
    assert not store.exists(layout.answer(WAITING, 0))


def test_a_signed_answer(store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    private, public = make_key_pair(tmp_path / "keys")
    asked(store)
    protect(store, "tiny", "champion", "cto", "signed only", [public.read_text()])
    words = ["approve", WAITING, "--reason", "seen"]
    assert "tiny@champion takes signed answers only. Name your private key" in said(store, capsys, *words, code=2)
    private.chmod(0o644)
    assert "may be read by others" in said(store, capsys, *words, "--key", str(private), code=2)
    private.chmod(0o600)
    value = json.loads(said(store, capsys, *words, "--key", str(private), "--json"))
    assert value["answer"]["signature"]["payloadType"] == "application/vnd.trainwright.approval+json"
    assert store.read_json(layout.answer(WAITING, 0)) == value["answer"]


def test_status_tells_what_a_waiting_run_waits_for(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert [line for line in said(store, capsys, "status").splitlines() if line.startswith(WAITING)]
    asked(store)
    assert "waiting for an answer before 2126-01-01 00:00 UTC" in said(store, capsys, "status")
    assert not store.exists(layout.answer(WAITING, 0))
    said(store, capsys, "approve", WAITING, "--reason", "seen")
    assert "waiting to be resumed: ada approved it" in said(store, capsys, "status")
    asked(store, n=1, deadline=LONG_AGO)
    told = json.loads(said(store, capsys, "status", "--json"))["stores"][0]["runs"]
    (line,) = [one for one in told if one["run_id"] == WAITING]
    assert line["verdict"] == "waiting"
    assert line["for"] == "to be resumed: nobody answered before the deadline 2026-01-01 00:00 UTC"
    assert not store.exists(layout.answer(WAITING, 1)), "who only looks writes nothing"


def test_what_is_answered_is_printed_first(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    told = asked(store, gates=[GateResult(metric="a", met=True, value=1, bound=0, sentence="a is 0.97\x1b[2J")])
    assert main(["approve", WAITING, "--reason", "seen", "--store", store.uri]) == 0
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith("The run"))
    assert lines[first : first + 6] == [
        f"The run {WAITING} of tiny asks: may this candidate become tiny@champion?",
        f"  candidate  checkpoint {told.candidate.id}",
        f"  champion   version 1, id {'1' * 64}",
        r"  gate       met: a is 0.97\x1b[2J",
        "  asked      2026-11-25 10:00 UTC",
        "  deadline   2126-01-01 00:00 UTC; without an answer before, it counts as refused",
    ]
    assert "may this candidate" not in printed.out


@pytest.mark.parametrize(
    ("typed", "words", "code"), [("y\n", [], 0), ("\n", [], 130), ("", [], 130), ("", ["--yes"], 0)]
)
def test_at_a_terminal_a_person_says_yes(
    store: Store, monkeypatch: pytest.MonkeyPatch, typed: str, words: list[str], code: int
) -> None:
    asked(store)
    typing = io.StringIO(typed)
    monkeypatch.setattr(typing, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", typing)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main(["approve", WAITING, "--reason", "seen", "--store", store.uri, *words]) == code
    assert store.exists(layout.answer(WAITING, 0)) == (code == 0)


def test_another_question_than_the_one_shown_is_not_answered(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first = asked(store)
    later: list[Question] = []

    def meanwhile(*_: object, **__: object) -> None:
        later.append(asked(store, n=1, champion=None, champion_version=None))

    monkeypatch.setattr("flows.commands.decisions._show_question", meanwhile)
    assert main(["approve", WAITING, "--reason", "seen", "--store", store.uri]) == 0
    assert store.read_json(layout.answer(WAITING, 0))["question"] == first.digest
    assert not store.exists(layout.answer(WAITING, 1))


def test_status_says_that_a_question_was_superseded(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    asked(store)
    asked(store, run_id="later", asked_at="2026-11-25T11:00:00+00:00")
    sentence = "waiting for nothing: the run later asked about tiny@champion later, and so superseded this question"
    assert sentence in said(store, capsys, "status")
