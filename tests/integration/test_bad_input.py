"""Bad input, one test a kind: the exit code, one sentence (what, where, what to do), and no traceback of ours."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.sentences import PLANS, BadPlan
from tests.support.tiny import answer, succeed, trainwright, write_project

pytestmark = pytest.mark.warm

TRACEBACK = "Traceback (most recent call last)"


def refused(done: subprocess.CompletedProcess[str], exit_code: int, *, frames: list[str] | None = None) -> str:
    """The one sentence of a command that failed; checks all that every failure promises.

    Args:
        frames: lines of the user's code whose traceback is expected; default none.
    """
    assert done.returncode == exit_code, done.stdout + done.stderr
    told = answer(done)
    error = told["error"]
    assert told["exit_code"] == exit_code
    sentence = f"{error['message']} {error['remedy']}".strip()
    assert done.stderr.endswith(f"trainwright: {sentence}\n"), done.stderr
    assert done.stderr.count("trainwright: ") == 1
    assert done.stderr.count(error["message"]) == 1, done.stderr
    assert done.stderr.count(TRACEBACK) == (1 if frames else 0), done.stderr
    for frame in frames or []:
        assert done.stderr.count(frame) == 1, done.stderr
    for ours in ("site-packages", "lib/python", str(Path(__file__).parents[2])):
        assert f'File "{ours}' not in done.stderr
        assert not frames or ours not in done.stderr
    return sentence


# Without these, root is refused by permission bits as anyone else is.
BOUND_BY_PERMISSIONS = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


@pytest.mark.skipif(bool(BOUND_BY_PERMISSIONS) and not shutil.which("setpriv"), reason="root without setpriv")
@pytest.mark.parametrize(
    ("place", "mode", "words"),
    [
        ("store", 0o500, ["This user may not use the store /", "Give this user permission"]),
        ("store", 0o000, ["This user may not use store.json in the store /", "Give this user permission"]),
        ("home", 0o500, ["This user may not write in the state folder", "TRAINWRIGHT_HOME"]),
        ("tiny/rows.csv", 0o000, ["rows.csv cannot be read by this user", "Give read permission on it"]),
        ("tiny/pipeline.yaml", 0o000, ["pipeline.yaml: cannot be read (Permission denied)", "check its permissions"]),
    ],
    ids=["store-read-only", "store-closed", "state-folder", "data", "spec"],
)
def test_a_place_without_permission(place: str, mode: int, words: list[str], tmp_path: Path) -> None:
    spec = write_project(tmp_path / "tiny")
    for folder in ("store", "home"):
        (tmp_path / folder).mkdir()
    command = [*BOUND_BY_PERMISSIONS, sys.executable, "-m", "flows.cli", "plan", str(spec), "--json"]
    root = str(Path(__file__).parents[2])
    (tmp_path / place).chmod(mode)
    try:
        done = subprocess.run(
            [*command, "--store", str(tmp_path / "store")],
            env={**os.environ, "PYTHONPATH": root, "TRAINWRIGHT_HOME": str(tmp_path / "home")},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        (tmp_path / place).chmod(0o700)  # so that it can be removed
    sentence = refused(done, 2)
    for word in words:
        assert word in sentence


@pytest.mark.parametrize("silent", [False, True], ids=["refuses", "is-silent"])
def test_a_server_that_does_not_answer_is_said_at_once(silent: bool, tmp_path: Path) -> None:
    spec = write_project(tmp_path / "tiny")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if silent:
            listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        # Prefect's own retries against a silent server take longer than this limit.
        done = trainwright("run", spec, "--json", env={"PREFECT_API_URL": url}, timeout_s=200)
    sentence = refused(done, 5)
    assert f"The Prefect server at {url} (from PREFECT_API_URL) does not answer: " in sentence
    assert "Start that server" in sentence
    assert "or remove the setting from PREFECT_API_URL" in sentence
    assert not (tmp_path / "tiny" / ".trainwright" / "runs").exists()


# All of PLANS are read in one process by tests/integration/test_sentences.py.
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (PLANS["no spec"], "pipeline.yaml: there is no such file"),
        (PLANS["wrong type"], "train.global_batch_size: must be a whole number"),
        (BadPlan(arguments=("--set", "train.seed=a", "--set", "train.strategy=b")), "\n"),  # a line for each field
        (PLANS["unknown key"], "train.global_batchsize: unknown key"),
        (PLANS["no such class"], "there is no Nett in "),
        (PLANS["missing suite"], "contract.suite"),
        (
            BadPlan(arguments=("--window", "soon")),
            "data.window: --window soon was given, but the spec has no window",
        ),
        (
            BadPlan(arguments=("--window", "soon", "--set", "data.window.column=a")),
            "The window 'soon' cannot be read",
        ),
    ],
    ids=[
        *("no spec", "wrong type", "wrong types", "unknown key", "no such class", "missing suite"),
        *("window", "window that is none"),
    ],
)
def test_run_reads_the_spec_before_it_looks_for_a_server(bad: BadPlan, words: str, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    spec = write_project(folder)
    bad.spoil(folder)
    nobody = {"PREFECT_API_URL": "http://127.0.0.1:9/api"}
    sentence = refused(trainwright("run", spec, *bad.arguments, "--json", cwd=folder, env=nobody), 2)
    assert words in sentence
    assert not (folder / ".trainwright").exists()


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose data is validated and sharded."""
    spec = write_project(tmp_path_factory.mktemp("bad") / "tiny")
    for verb in ("validate", "shard"):
        succeed(verb, spec)
    return spec.parent


def test_what_is_milder_than_fail_on_is_named_and_rejects_nothing(tmp_path: Path) -> None:
    spec = write_project(tmp_path / "tiny")
    expected = [
        ("expect_column_max_to_be_between", {"column": "label", "max_value": 0}, "warning"),
        ("expect_column_values_to_be_unique", {"column": "id"}, "critical"),
    ]
    suite = [{"type": kind, "kwargs": kwargs, "severity": severity} for kind, kwargs, severity in expected]
    (tmp_path / "tiny" / "suite.json").write_text(json.dumps({"name": "s", "expectations": suite}))
    done = succeed("validate", spec)
    assert "600 rows meet 1 of 2 expectations; expect_column_max_to_be_between on label" in done.stderr
    rows = tmp_path / "tiny" / "rows.csv"
    rows.write_text(rows.read_text() + rows.read_text().splitlines()[-1] + "\n")
    sentence = refused(trainwright("validate", spec, "--json"), 3)
    assert sentence.startswith("The contract rejects the data: expect_column_values_to_be_unique on id")
    assert " Milder than fail_on: expect_column_max_to_be_between on label" in sentence


@pytest.mark.parametrize("verb", ["plan", "train"])
def test_a_column_that_is_not_there(verb: str, sharded: Path) -> None:
    misspelt = ("--set", "train.batch=[[a, b, c], labl]")
    sentence = refused(trainwright(verb, sharded / "pipeline.yaml", *misspelt, "--json"), 2)
    assert sentence.startswith("train.batch: the dataset has no column 'labl'; did you mean label? It has ")
    assert not list((sharded / ".trainwright").glob("trainings/*/g0"))


@pytest.fixture
def code(sharded: Path) -> Iterator[Path]:
    """The sharded project, whose code may be spoilt and is as it was afterwards."""
    good = (sharded / "net.py").read_text()
    yield sharded
    (sharded / "net.py").write_text(good)


def test_a_file_that_raises_on_import(code: Path) -> None:
    BadPlan("net.py", "class Net", 'LIMIT = int("twelve")\n\n\nclass Net').spoil(code)
    done = trainwright("train", code / "pipeline.yaml", "--json")
    sentence = refused(done, 8, frames=['File "net.py", line 6, in <module>', 'LIMIT = int("twelve")'])
    for word in ("importing net raised ValueError", "twelve", "Correct the code shown above and run again."):
        assert word in sentence
    assert "ValueError: invalid literal" in answer(done)["error"]["user_traceback"]


STEP = "        x, y = batch\n        loss"
IN_STEP_3 = '        if batch_idx == 2:\n            raise RuntimeError("one step too many")\n'


@pytest.mark.parametrize("as_json", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["json", "text"])
def test_a_model_that_raises_in_step_3(as_json: bool, code: Path) -> None:
    BadPlan("net.py", STEP, IN_STEP_3 + STEP).spoil(code)
    said = "The user's code raised RuntimeError: one step too many."
    frames = ['File "net.py", line 17, in training_step', '    raise RuntimeError("one step too many")']
    done = trainwright("run", code / "pipeline.yaml", *(["--json"] if as_json else []))
    if as_json:
        assert said in refused(done, 8, frames=frames)
        report = answer(done)
        assert (report["verdict"], report["stages"][-1]["name"]) == ("failed", "train")
        assert report["stages"][-1]["status"] == "failed"
        assert report["sentence"].startswith(said)
    else:
        # For a person: the traceback, then the report, which begins with the sentence.
        assert done.returncode == 8
        assert (done.stdout + done.stderr).count(said) == 1
        assert done.stdout.startswith(f"failed: {said} Correct the code shown above and run again.\n")
        assert [done.stderr.count(line) for line in (TRACEBACK, *frames)] == [1, 1, 1]
        assert done.stderr.endswith("RuntimeError: one step too many\n")
