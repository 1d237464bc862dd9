"""A run, a model or a store that is not there: where it was searched, and what to do."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import UsageError
from data_contracts.run_report import RunReport, StageResult
from flows.commands import decisions, guard, queries, run
from infra.store import Store, layout, open_store
from tasks.queries.proof import Link, Proof
from tasks.run.resolve import resolved_runs

pytestmark = pytest.mark.usefixtures("home")
STATUS = "`trainwright status` lists runs and models; name another store with --store."
MODEL = "digits is a model, not a run. Name a run's id; `trainwright status` lists runs."
Command = Callable[[Namespace], Any]


@pytest.fixture
def here(current_folder: Path) -> Store:
    """A folder whose `.trainwright` is a store with the model digits, and no run."""
    store = open_store(str(current_folder / ".trainwright"))
    store.create(f"{layout.model('digits', 1)}/manifest.json", b"{}")
    return store


def refusal(command: Command, name: str) -> str:
    arguments = {"store": None, "json": False, "from_step": None, "rank": None, "to": None, "reason": "", "run": name}
    arguments |= {"key": [], "at_least": None, "evidence": [], "data": []}
    with pytest.raises(UsageError) as error:
        command(Namespace(name=name, **arguments))
    return str(error.value)


@pytest.mark.parametrize(
    ("command", "name", "what"),
    [
        (run.resume, "abc", "run abc"),
        (run.resume, "RUN", "run RUN"),
        (queries.checkpoints, "nothing@champion", "run nothing@champion"),
        (queries.logs, "../x", "run ../x"),
        (queries.show, "RUN", "run or model RUN"),
        (queries.show, "nothing", "run or model nothing"),
        (queries.show, "nothing@champion", "model nothing"),
        (queries.prove, "Digits", "model Digits"),
        (decisions.rollback, "nothing", "model nothing"),
    ],
)
def test_a_run_or_model_that_is_not_there(command: Command, name: str, what: str, here: Store) -> None:
    assert refusal(command, name) == f"There is no {what} in {here.uri}. {STATUS}"


@pytest.mark.parametrize("command", [run.resume, queries.checkpoints, queries.logs])
@pytest.mark.parametrize("name", ["digits", "digits@champion"])
def test_a_model_where_a_run_should_be(command: Command, name: str, here: Store) -> None:
    assert refusal(command, name) == MODEL.replace("digits", name)


def test_no_store_is_known(current_folder: Path) -> None:
    assert refusal(queries.show, "abc") == (
        "There is no run or model abc: no store is known on this machine. Name its store with --store, or run a "
        "pipeline: `trainwright run SPEC`."
    )
    answer = queries.status(Namespace(store=None, html=None, since=None, objectives=None))
    assert answer.text.endswith("\n\nno store is known on this machine; `trainwright run SPEC` makes one")
    assert answer.value["stores"] == []


def test_an_empty_store_and_a_run_whose_name_is_not_one(current_folder: Path) -> None:
    store = open_store(str(current_folder / ".trainwright"))
    strange = current_folder / ".trainwright" / "runs" / "r\nX"
    strange.mkdir(parents=True)
    (strange / "resolved.json").write_text("{}")
    answer = queries.status(Namespace(store=None, html=None, since=None, objectives=None))
    none = "no runs and no models yet; `trainwright run SPEC` makes the first"
    assert answer.text.endswith(f"\n\nstore     {store.uri}\n  {none}")
    assert answer.value["stores"] == [{"uri": store.uri, "problem": None, "runs": [], "models": [], "mirrors_due": []}]
    assert list(resolved_runs(store, "tiny")) == []


@pytest.mark.parametrize(
    ("files", "num_bytes", "words"),
    [(0, 0, "record only"), (1, 5, "1 file, 5 bytes"), (2, 1234, "2 files, 1,234 bytes")],
)
def test_prove_counts_the_files_of_a_sealed_part(files: int, num_bytes: int, words: str) -> None:
    assert queries._content(Link("version", "models/x/1", "id", files, num_bytes)) == words


FORGED = "x\n  signed: 9 receipts\r::error::y"


def test_no_text_of_a_proof_makes_a_line_of_its_own(here: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    proof = Proof("digits", 1, None, raw_checked=[FORGED], gone=[FORGED], unopened=[FORGED])
    monkeypatch.setattr(queries, "prove_version", lambda *_, **__: proof)
    arguments = Namespace(store=None, name="digits@1", key=[], at_least=None, data=[])
    assert len(queries.prove(arguments).text.splitlines()) == 4


def test_no_text_of_a_report_makes_a_line_of_its_own() -> None:
    stage = StageResult(name=FORGED, status="reused", seconds=1.0, sentence="", reused_from=FORGED)
    report = RunReport(
        run_id=FORGED, pipeline="p", verdict="promoted", exit_code=0, sentence=FORGED, stages=[stage], budgets=[FORGED]
    )
    assert len(guard.run_text(report, colour=False).splitlines()) == 6
