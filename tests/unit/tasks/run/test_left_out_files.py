"""What is packed of a project's code, and what is said of a file that the code needs and the bundle lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.errors import UserCodeError
from infra.written_files import record_written
from tasks.run.resolve import explain_left_out
from tasks.run.run import open_run
from tasks.run.spec_check import read_spec
from tests.support.files import git, write_files
from tests.support.tiny import answer, trainwright, write_project

pytestmark = [pytest.mark.usefixtures("home"), pytest.mark.warm]
# Without torch, which takes seconds to import.
NET = "from pathlib import Path\n\nHERE = Path(__file__).parent\n\n\nclass Net: ...\n"


def project(folder: Path, files: dict[str, str], *, ignored: str = "") -> Path:
    spec = write_project(folder)
    write_files(folder, {"net.py": NET, ".gitignore": ignored, **files})
    git(folder, "init")
    return spec


def test_a_report_that_the_code_reads_is_named_with_the_reason(tmp_path: Path) -> None:
    spec = project(tmp_path / "tiny", {"page.html": "a page"})
    record_written(spec.parent / "page.html")
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
    run = open_run(read_spec(project(tmp_path / "tiny", files, ignored="raw\n*.npy")), recorded=False)
    trace = f'Traceback (most recent call last):\n  File "net.py"\n    open("deep/x.npy")\n{raised}\n'
    error = UserCodeError("The user's code raised what is below.", user_traceback=trace)
    explain_left_out(error, run.resolved, run.store)
    first, last = UNFOUND[raised]
    assert error.remedy.startswith(first)
    assert error.remedy.endswith(last)


def test_a_plan_lists_what_is_packed_and_what_is_left_out(tmp_path: Path) -> None:
    spec = write_project(tmp_path / "tiny", {"code": {"include": ["words/*"]}})
    write_files(spec.parent, dict.fromkeys(("secrets/db.json", "words/a.npy", "words/key.json"), "12345"))
    done = trainwright("plan", spec, "--no-estimate", "--json")
    assert done.returncode == 0, done.stderr
    code = answer(done)["code"]
    names = ["net.py", "pipeline.yaml", "pyproject.toml", "suite.json", "words/a.npy"]
    assert [one["path"] for one in code["packed"]] == names
    assert code["packed"][-1] == {"path": "words/a.npy", "bytes": 5, "counted": True}
    secret = {"bytes": 5, "why": "its name looks like a secret's"}
    rows = {"path": "rows.csv", "bytes": (spec.parent / "rows.csv").stat().st_size, "why": "it is a source of data"}
    assert code["left_out"] == [rows, {"path": "secrets/db.json", **secret}, {"path": "words/key.json", **secret}]
    text = trainwright("plan", spec, "--no-estimate").stdout
    assert "\ncode      packs 5 files, " in text
    assert "\n  left out       5 B  secrets/db.json: its name looks like a secret's\n" in text
