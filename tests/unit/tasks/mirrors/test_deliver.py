"""A run and a rollback reach each mirror, once, whatever fails between; the run's verdict never depends on it."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from datetime import datetime, timedelta
from html import unescape
from pathlib import Path
from unittest.mock import Mock

import pytest

from data_contracts.errors import UsageError
from flows.cli import main
from infra.mirrors import PREFECT, Deadline
from infra.models import registry
from infra.store import Store, layout
from tasks.mirrors import deliver
from tasks.mirrors.deliver import Due, due, due_events
from tasks.pages.facts import facts_of
from tasks.pages.run_page import run_report_page
from tasks.run.run import reopen_run
from tests.support.approved import approve_here
from tests.support.commands import output_of
from tests.support.pool import Site, model_events, password_in, server_url, until
from tests.support.runs import make_run
from tests.support.stub_server import FakeMlflow, serving
from tests.support.tiny import answer, home_with_server, trainwright

pytestmark = pytest.mark.warm

PORT_OF_NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("status", "refused"), [(401, True), (403, True), (404, False), (405, False), (200, False), (503, False)]
)
def test_credentials_of_mirrors_are_tried_at_the_start(
    status: int, refused: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(deliver, "TRY_S", 60.0)  # a busy machine is not a server that does not answer
    with serving(lambda asked: (status, {})) as (address, got):
        approve_here(address, "env:ME", "env:WORD")
        run = make_run(spec={"mirrors": {"mlflow": {"uri": address, "username": "env:ME", "password": "env:WORD"}}})
        monkeypatch.setenv("ME", "me")
        with pytest.raises(UsageError, match=r"^mirrors.mlflow.password names the environment variable WORD, which is"):
            deliver.try_mirrors(run)
        monkeypatch.setenv("WORD", "word")
        with pytest.raises(UsageError, match="refuses the credentials") if refused else contextlib.nullcontext():
            deliver.try_mirrors(run)
    assert [(one.method, "authorization" in one.headers) for one in got] == [("GET", True)]
    assert ("The run begins without it" in caplog.text) == (status == 503)


def test_a_mirror_that_is_away_is_told_later(
    project: Path, store: Store, mlflow: FakeMlflow, capsys: pytest.CaptureFixture
) -> None:
    log = (project / "log.txt").read_text()
    assert "mlflow was not told of run" in log
    assert "could not be reached" in log
    assert "The run begins without it" in log[: log.index("validate  ")], "it is tried before the first stage"
    [left] = due(store)
    assert (left.mirror, left.what, left.attempts) == ("mlflow", "final", 1)
    assert "mlflow was not told of run" in output_of(capsys, "status", "--store", store.uri)
    said = output_of(capsys, "mirror", "--store", store.uri)
    assert said.startswith(f"mlflow: run {left.run_id} is ")
    assert "tiny version 1 is 10, and tiny@champion is 10 in MLflow" in said
    assert due(store) == []
    assert main(["mirror", left.run_id, "--store", store.uri]) == 0  # all of it again
    [run], [version] = mlflow.runs, mlflow.versions
    assert run["tags"]["trainwright.run_id"] == left.run_id
    assert (run["status"], run["tags"]["cost.team"], version["tags"]["cost.team"]) == ("FINISHED", "tests", "tests")
    assert run["params"]["train.lightning.model.init_args.lr"] == "0.05"
    curves = {(dict(one)["key"], dict(one)["step"]) for one in run["metrics"]}
    assert ("evaluate/accuracy", 45) in curves
    assert {step for key, step in curves if key == "train_loss"} == {9, 19, 29, 39}
    assert mlflow.aliases == {"tiny@champion": version["version"]}
    assert mlflow.files == {}  # the page of a run shows rows of the data


def test_a_rollback_is_told_and_what_was_told_is_not_due(store: Store, mlflow: FakeMlflow) -> None:
    deliver.tell(store, lambda: due(store), Deadline(60))
    mlflow.broken = True
    record = json.dumps(mlflow.aliases)
    for number in (2, 3):  # versions of the same weights, for a rollback in little time
        promote_again(store, number)
    assert main(["rollback", "tiny", "--to", "2", "--store", store.uri]) == 0
    assert json.dumps(mlflow.aliases) == record

    def waiting() -> list[Due]:
        return [one for one in due(store) if one.mirror != PREFECT]

    assert [(one.mirror, one.what, one.alias) for one in waiting()] == [("mlflow", "alias", ("tiny", "champion"))]
    mlflow.broken = False
    [left] = deliver.tell(store, waiting, Deadline(60))
    assert "does not have version 2" in left.last.sentence
    mlflow.versions.append({"version": "77", "tags": {"trainwright.version": "2"}})
    assert deliver.tell(store, waiting, Deadline(60)) == []
    assert mlflow.aliases == {"tiny@champion": "77"}


def test_the_page_of_a_run_says_what_was_sent_where(store: Store, mlflow: FakeMlflow) -> None:
    [run_id] = store.list(layout.runs())

    def shown() -> str:
        part = run_report_page(facts_of(reopen_run(run_id, store.uri))).partition("<h2>Mirrors</h2>")[2]
        return " ".join(unescape(re.sub(r"<[^>]+>", " ", part.partition("</section>")[0])).split())

    before = shown()
    assert re.search(rf"mlflow +{PORT_OF_NOBODY} +failed +20.* UTC +.*could not be reached", before)
    assert "Not sent: mlflow. The next run with mirrors" in before
    assert deliver.tell(store, lambda: due(store), Deadline(60)) == []
    after = shown()
    assert re.search(rf"mlflow +{PORT_OF_NOBODY} +sent +20.* UTC \(attempt 2\) +run {run_id} is ", after)
    assert "Not sent" not in after


def test_prefect_hears_of_a_rollback_later_if_no_server_ran(
    store: Store, tmp_path: Path, shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver.tell(store, lambda: due(store), Deadline(60))
    promote_again(store, 2)
    assert due_events(store) == []  # a promotion is not a rollback, whoever made it
    # In processes of their own: Prefect reads the address of its server once.
    away = trainwright("rollback", "tiny", "--store", store.uri, env={"PREFECT_API_URL": f"{PORT_OF_NOBODY}/api"})
    assert away.returncode == 0, away.stderr
    assert "prefect was not told of the rollback of tiny@champion: no Prefect server runs here" in away.stderr
    [left] = due_events(store, "tiny")
    assert (left.mirror, left.alias, left.attempts) == ("prefect", ("tiny", "champion"), 1)
    assert due_events(store, "another") == []
    with monkeypatch.context() as later:
        later.setattr(deliver, "LATEST", timedelta(0))
        assert due_events(store) == []
    with home_with_server(tmp_path / "served", shared_folder):
        site = Site(server_url(), tmp_path / "site", password_in(tmp_path / "served"))
        told = answer(trainwright("mirror", "--store", store.uri, "--json", "--wait", "60", env=site.environment))
        assert "prefect: the rollback of tiny@champion is an event in Prefect" in told["done"]
        assert due_events(store) == []
        [event] = until(lambda: model_events(site, "tiny"))
        site.close()
    receipt, about = registry.newest_move(store, "tiny", "champion") or (None, {})
    assert (event["event"], event["payload"]["sentence"]) == ("trainwright.model.rolled_back", receipt.sentence)
    assert datetime.fromisoformat(event["occurred"]) == datetime.fromisoformat(about["finished"])


def promote_again(store: Store, number: int) -> None:
    """Another version of the same checkpoint, promoted as a run would."""
    named = registry.read_alias(store, "tiny", "champion")
    first = registry.read_version(store, "tiny", 1)
    about = store.manifest(first.ref).provenance
    version = registry.write_version(store, "tiny", first.checkpoint, first.evaluation, {"n": number}, about)
    [receipt, *_] = registry.history(store, "tiny", "champion")
    told = receipt.model_copy(update={"version": number, "previous": named[1], "ref": None})
    registry.move_alias(store, named[0], version, told, {**about, "run_id": f"by-hand-{number}"}, ())


def test_one_process_tells_at_a_time_and_one_that_died_is_followed(store: Store, mlflow: FakeMlflow) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.mirrors.deliver.Mlflow.put_version", Mock(side_effect=RuntimeError("killed")))
        [left] = deliver.tell(store, lambda: due(store), Deadline(60))
    assert left.last.sentence == "It failed with RuntimeError. `trainwright mirror` tells it again."
    assert (len(mlflow.runs), mlflow.versions) == (1, [])
    assert deliver.tell(store, lambda: due(store), Deadline(60)) == []
    assert (len(mlflow.runs), len(mlflow.versions)) == (1, 1)


def test_what_only_the_store_names_gets_no_credential(
    project: Path, store: Store, mlflow: FakeMlflow, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    [run_id] = store.list(layout.runs())
    monkeypatch.setenv("OTHER_SECRET", "hunter2")
    about = store.read_json(layout.resolved(run_id))
    with serving(FakeMlflow()) as (address, got):
        evil = {"uri": address, "username": "env:USER_OF_MINE", "password": "env:OTHER_SECRET", "model": False}
        monkeypatch.setenv("USER_OF_MINE", "me")
        about["spec"]["mirrors"] = {"mlflow": evil}
        # A writer of the store can compute a record's digest, too.
        (project / ".trainwright" / layout.resolved(run_id)).unlink()
        store.create_json(layout.resolved(run_id), about)
        left = deliver.tell(store, lambda: due(store), Deadline(60))
        assert ([one.mirror for one in left], got) == (["mlflow"], [])
        assert main(["mirror", "--store", store.uri]) == 5
        said = capsys.readouterr()
        assert f"{address}' (with env:USER_OF_MINE, env:OTHER_SECRET) is named in the store" in said.out + said.err
        own = ["mirror", run_id, "--store", store.uri]
        assert main(own) == 5  # a run's id does not say where its record leads by now
        assert main([*own, "--accept", "https://elsewhere.example"]) == 2
        assert f"mirror {run_id} --accept {address}" in capsys.readouterr().out
        assert got == []
        own += ["--accept", address]
        main(own)  # the user says so
        assert "mirrors.mlflow.username: nobody on this machine has approved" in capsys.readouterr().out
        assert got == []
        approve_here(address, "env:USER_OF_MINE", "env:OTHER_SECRET")
        main(own)
        assert {one.headers["authorization"][:6] for one in got} == {"Basic "}


def test_nothing_of_a_mirror_ends_a_run(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    run = reopen_run(store.list(layout.runs())[0], store.uri)
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(deliver, "due", Mock(side_effect=ValueError("a value of the data: 17.5")))
        deliver.tell_after_run(run)
    assert "The mirrors were not told (ValueError)" in caplog.text
    assert "17.5" not in caplog.text
