"""A file that the code needs at import and the bundle lacks is named before anything is booked."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import UsageError, UserCodeError
from data_contracts.messages.children import Child, ImportTrialAnswer, ImportTrialRequest
from infra.processes.environment import NO_SHAKEDOWN
from infra.written_files import record_written
from tasks.run import spec_check
from tasks.run.resolve import explain_left_out
from tasks.run.run import open_run
from tasks.run.spec_check import read_spec
from tests.support.tiny import MODEL, SPEC, answer, trainwright, write_project

pytestmark = [pytest.mark.usefixtures("home"), pytest.mark.warm]
# Without torch, which takes seconds to import.
NET = "from pathlib import Path\n\nHERE = Path(__file__).parent\n{body}\n\n\nclass Net: ...\n"


def project(folder: Path, body: str, files: dict[str, str], *, ignored: str = "", **sections: Any) -> Path:
    spec = write_project(folder, sections)
    (folder / "net.py").write_text(NET.format(body=body))
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    if ignored:
        (folder / ".gitignore").write_text(ignored)
        subprocess.run(["git", "-C", str(folder), "init"], check=True, capture_output=True)
    return spec


ONLY = "net.Net cannot be imported from the packed files of the project {folder}: it needs {path}, which is left out, "
NEEDED: list[tuple[str, dict[str, Any], str, str]] = [
    ("WORDS = (HERE / 'a/words.npy').read_bytes()", {"files": {"a/words.npy": "1"}}, "a/words.npy", "it is data, and"),
    ("ROWS = open('rows.csv').read()", {"files": {}}, "rows.csv", "it is a source of data"),
    ("from made import x", {"files": {"made.py": "x = 1"}, "ignored": "made.py"}, "made.py", "Git ignores it"),
    ("X = open(HERE / 'raw/x.json')", {"files": {"raw/x.json": "1"}, "ignored": "raw"}, "raw/x.json", "Git ignores it"),
]


@pytest.mark.parametrize(("body", "more", "path", "why"), NEEDED, ids=[case[2] for case in NEEDED])
def test_a_file_that_was_left_out_is_named_and_include_brings_it(
    body: str, more: dict[str, Any], path: str, why: str, tmp_path: Path
) -> None:
    folder = tmp_path / "tiny"
    spec = project(folder, body, **more)
    with pytest.raises(UsageError) as caught:
        open_run(read_spec(spec))
    assert caught.value.message.startswith(f"{ONLY.format(folder=folder, path=path)}because {why}")
    assert caught.value.remedy == f"If it may be stored, add code.include: [{path}] to the spec."
    assert not (folder / ".trainwright/runs").exists()
    run = open_run(read_spec(project(folder, body, **more, code={"include": [path]})), recorded=False)
    assert path in [file.path.removeprefix("project/") for file in run.store.manifest(run.resolved.code).files]


def test_a_report_that_the_code_reads_is_named_with_the_reason(tmp_path: Path) -> None:
    """On import before anything is booked; later in the error of the stage."""
    spec = project(tmp_path / "tiny", "PAGE = (HERE / 'page.html').read_text()", {"page.html": "a page"})
    record_written(spec.parent / "page.html")
    with pytest.raises(UsageError, match=r"it needs page.html, which is left out, because Trainwright wrote it"):
        open_run(read_spec(spec))
    (spec.parent / "net.py").write_text(MODEL)
    run = open_run(read_spec(spec), recorded=False)
    errors = [
        UserCodeError(f"It raised FileNotFoundError: [Errno 2] No such file or directory: {path!r}.")
        for path in ("/tmp/a/project/page.html", "/tmp/a/project/homepage.html")
    ]
    for error in errors:
        explain_left_out(error, run.resolved, run.store)
    assert errors[0].remedy.startswith("page.html is not in the bundle of the project's code: Trainwright wrote it. If")
    assert errors[1].remedy.startswith("Code runs in a copy of its project's packed files and opens relative paths")


INCLUDE = "If it may be stored, name the file by its exact path in code.include"
# What libraries say -> the beginning and the end of the remedy.
UNFOUND = {
    "FileNotFoundError: [Errno 2] No such file or directory: 'raw/x.h5'": ("raw/ is not in the bundle", f"{INCLUDE}."),
    "OSError: Unable to open file (name = 'raw/x.h5', errno = 2, error message = 'No such file or directory')": (
        "raw/ is not in the bundle",
        f"{INCLUDE}.",
    ),
    "FileNotFoundError: deep/x.npy": ("deep/x.npy is not in the bundle", f"{INCLUDE}."),
    "FileNotFoundError: [Errno 2] No such file or directory: 'x.npy'": (
        "deep/x.npy is not in the bundle",
        f"{INCLUDE} and open it as deep/x.npy: relative paths begin at the project's root.",
    ),
    "FileNotFoundError: [Errno 2] No such file or directory: '/elsewhere/x.npy'": (
        "Code runs in a copy",
        "full paths.",
    ),
    "OSError: Can't load tokenizer for 'raw'. If you were trying to load it": (
        "raw/ is not in the bundle",
        f"{INCLUDE}.",
    ),
    "Exception: No such file or directory (os error 2)": ("deep/x.npy is not in the bundle", "project's root."),
    "ValueError: raw/x.h5 has no table": (UserCodeError.default_remedy, UserCodeError.default_remedy),
}


@pytest.mark.parametrize("raised", UNFOUND)
def test_a_file_that_a_hook_does_not_find_is_named_with_the_reason(raised: str, tmp_path: Path) -> None:
    files = {"raw/x.h5": "1", "deep/x.npy": "1", "deep/other.py": ""}
    run = open_run(read_spec(project(tmp_path / "tiny", "", files, ignored="raw\n*.npy")), recorded=False)
    trace = f'Traceback (most recent call last):\n  File "net.py"\n    open("deep/x.npy")\n{raised}\n'
    error = UserCodeError("The user's code raised what is below.", user_traceback=trace)
    explain_left_out(error, run.resolved, run.store)
    first, last = UNFOUND[raised]
    assert error.remedy.startswith(first)
    assert error.remedy.endswith(last)


def test_a_bundle_is_tried_once_and_only_if_a_module_mentions_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def count(child: Child[Any, Any], request: ImportTrialRequest, **more: Any) -> ImportTrialAnswer:
        tried.append(child.module)
        return ImportTrialAnswer(missing=None)

    monkeypatch.setattr(spec_check, "run_child", count)
    spec = write_project(tmp_path / "tiny")
    open_run(read_spec(spec), recorded=False)
    assert tried == [], "nothing in the module speaks of rows.csv"
    (spec.parent / "net.py").write_text(f"{MODEL}\nPATH = 'rows.csv'\n")
    for _ in range(2):
        open_run(read_spec(spec), recorded=False)
    assert tried == ["training.user.import_trial"]


def test_an_import_that_fails_for_another_reason_is_left_to_its_stage(tmp_path: Path) -> None:
    run = open_run(
        read_spec(project(tmp_path / "tiny", "raise ValueError('no GPU for .csv files')", {})), recorded=False
    )
    assert len([*(spec_check.state_folder() / "tried").iterdir()]) == 1, "it was tried, and is not tried again"
    assert "project/net.py" in [file.path for file in run.store.manifest(run.resolved.code).files]


def test_a_spec_without_the_section_is_dumped_as_before(tmp_path: Path) -> None:
    run = open_run(read_spec(write_project(tmp_path / "tiny")), recorded=False)
    assert "code" not in run.resolved.spec
    run = open_run(read_spec(write_project(tmp_path / "tiny", {"code": {"include": ["./suite.json"]}})), recorded=False)
    assert run.resolved.spec["code"] == {"include": ["suite.json"]}
    assert run.spec.code.include == ["suite.json"]


def test_a_plan_lists_what_is_packed_and_what_is_left_out(tmp_path: Path) -> None:
    spec = write_project(tmp_path / "tiny", {"code": {"include": ["words/*"]}})
    for name in ("secrets/db.json", "words/a.npy", "words/key.json"):
        (spec.parent / name).parent.mkdir(exist_ok=True)
        (spec.parent / name).write_text("12345")
    done = trainwright("plan", spec, "--no-estimate", "--json")
    assert done.returncode == 0, done.stderr
    code = answer(done)["code"]
    names = ["net.py", "pipeline.yaml", "pyproject.toml", "suite.json", "words/a.npy"]
    assert [one["path"] for one in code["packed"]] == names
    assert code["packed"][-1] == {"path": "words/a.npy", "bytes": 5, "counted": True}
    secret = {"bytes": 5, "why": "its name looks like a secret's"}
    rows = {"path": "rows.csv", "bytes": (spec.parent / "rows.csv").stat().st_size, "why": "it is a source of data"}
    left_out = [rows, {"path": "secrets/db.json", **secret}, {"path": "words/key.json", **secret}]
    assert code["left_out"] == left_out
    text = trainwright("plan", spec, "--no-estimate").stdout
    assert "\ncode      packs 5 files, " in text
    assert "\n  left out       5 B  secrets/db.json: its name looks like a secret's\n" in text


WORDS = """
import os
from pathlib import Path

import lightning as L
import numpy as np
import torch
import torchmetrics

HERE = Path(__file__).parent


class Net(L.LightningModule):
    def __init__(self, lr: float = 0.05, folder: str = "words"):
        super().__init__()
{init}

    def setup(self, stage):
{setup}


class Score(torchmetrics.SumMetric):
    def __init__(self, **more):
        super().__init__(**more)
{metric}


def change(batch):
{transform}
    return batch
"""
PLACES = ("init", "setup", "metric", "transform")
METRIC = {
    "evaluate": {"metrics": {"score": {"class_path": "net.Score", "target": "label", "mode": "max"}}},
    "promote": {"gates": [{"metric": "score", "min": 1}]},
}
MODEL_ARGS = {"model": {"class_path": "net.Net", "init_args": {"folder": "words"}}}
# Where the code reads a file, how -> what the trial says of it.
READS: dict[str, tuple[str, str, str]] = {
    "constructor": ("init", "np.load(HERE / 'words' / 'table.npy')", "net.Net cannot be made"),
    "setup": ("setup", "torch.load('words/table.npy')", "net.Net cannot be made"),
    "folder": ("init", "[np.load(f'{folder}/{name}') for name in ['table.npy']]", "net.Net cannot be made"),
    "listed": ("init", "os.listdir(HERE / 'words')", "net.Net cannot be made"),
    "metric": ("metric", "open('words/table.npy')", "net.Score cannot be made"),
    "transform": ("transform", "batch['label']; np.load('words/table.npy')", "net.change cannot be called"),
}


def reading(folder: Path, place: str, line: str, **sections: Any) -> Path:
    """A project whose code reads words/table.npy at a place."""
    train = {**SPEC["train"], "lightning": MODEL_ARGS}
    shards = {**SPEC["shards"], "transform": "net.change"}
    spec = project(folder, "", {"words/table.npy": "1"}, train=train, shards=shards, **METRIC, **sections)
    bodies = {name: textwrap.indent("pass", " " * 8) for name in PLACES}
    bodies[place] = textwrap.indent(line, " " * (4 if place == "transform" else 8))
    bodies["transform"] = bodies["transform"] if place == "transform" else "    pass"
    (folder / "net.py").write_text(WORDS.format(**bodies))
    return spec


def cases(usual: str) -> list[Any]:
    return [pytest.param(*case, id=id_, marks=() if id_ in usual else pytest.mark.sweep) for id_, case in READS.items()]


@pytest.mark.parametrize(("place", "line", "sentence"), cases("constructor transform"))
def test_a_file_that_the_code_opens_when_it_is_used_is_named_before_any_stage(
    place: str, line: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(NO_SHAKEDOWN)
    with pytest.raises(UsageError) as caught:
        open_run(read_spec(reading(tmp_path / "tiny", place, line)))
    assert caught.value.message.startswith(f"{sentence} from the packed files of the project {tmp_path / 'tiny'}: ")
    assert "it needs words/table.npy, which is left out, because it is " in caught.value.message
    assert caught.value.remedy == "If it may be stored, add code.include: [words/table.npy] to the spec."


def test_a_file_that_the_code_does_without_or_opens_by_its_full_path_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(NO_SHAKEDOWN)
    folder = tmp_path / "tiny"
    full = folder / "words/table.npy"
    line = f"try:\n    open('words/table.npy')\nexcept OSError:\n    open({str(full)!r})"
    spec = reading(folder, "init", line)
    for _ in range(2):  # the second run, which tries nothing, says the same
        caplog.clear()
        open_run(read_spec(spec), recorded=False)
        said = [record.getMessage() for record in caplog.records if "code.include" in record.getMessage()]
        assert len(said) == 2
        assert said[0].startswith("The code tries to open words/table.npy and runs without it, because it is left out")
        assert said[1].startswith(f"The code opens {full} by its full path, so it reads this machine's file")


def test_scripts_that_no_code_of_the_spec_imports_are_no_reason_to_try_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spec_check, "run_child", lambda *_, **__: pytest.fail("tried"))
    spec = write_project(tmp_path / "tiny")
    (spec.parent / "make_data.py").write_text("PATH = 'rows.csv'\n")
    open_run(read_spec(spec), recorded=False)


def test_nothing_is_made_without_a_shakedown(tmp_path: Path) -> None:
    run = open_run(read_spec(reading(tmp_path / "tiny", "init", "open('words/table.npy')")), recorded=False)
    assert "words/table.npy" not in [file.path for file in run.store.manifest(run.resolved.code).files]
