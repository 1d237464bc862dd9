"""Git runs no program that the folder's configuration names, whichever of our calls it is."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from infra import audit
from infra import project as project_module
from infra.audit import run_git
from tests.support.files import git, write_files
from tests.support.frozen import PACKAGES, ROOT


def repository(folder: Path) -> Path:
    write_files(folder, {"model.py": "x = 1\n", "rows.dat": "1\n", ".gitattributes": "*.dat filter=evil diff=evil\n"})
    git(folder, "init")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    return folder


def arm(folder: Path, marks: Path) -> None:
    """Let the folder's configuration name a program wherever Git would run one; each leaves a mark."""
    marks.mkdir(exist_ok=True)

    def program(name: str) -> str:
        path = marks.parent / f"{folder.name}-{name}"
        path.write_text(f"#!/bin/sh\ntouch {marks}/{folder.name}-{name}\nexit 1\n")
        path.chmod(0o755)
        return str(path)

    hooks = folder / ".git/own-hooks"
    hooks.mkdir()
    for name in ("post-index-change", "reference-transaction"):
        (hooks / name).symlink_to(program(name))
    for setting, value in {
        "core.fsmonitor": program("fsmonitor"),
        "core.hooksPath": str(hooks),
        "core.sshCommand": program("ssh"),
        "core.pager": program("pager"),
        "core.askPass": program("askpass"),
        "credential.helper": program("credential"),
        "filter.evil.clean": program("clean"),
        "filter.evil.smudge": program("smudge"),
        "filter.evil.required": "true",
        "diff.evil.textconv": program("textconv"),
        "diff.external": program("external"),
        "alias.status": f"!{program('alias')}",
        "gpg.program": program("gpg"),
        "tag.gpgSign": "true",
        "tag.forceSignAnnotated": "true",
        "extensions.partialClone": "away",
        "remote.away.url": "ssh://away/x",
        "remote.away.promisor": "true",
        "remote.away.uploadpack": program("uploadpack"),
    }.items():
        git(folder, "config", setting, value)
    git(folder, "config", "core.repositoryFormatVersion", "1")
    # Git compares the bytes, through the filter, where time and size leave it in doubt.
    (folder / "rows.dat").write_text("2\n")
    os.utime(folder / "model.py", (1, 1))


def test_no_call_of_ours_runs_one(tmp_path: Path) -> None:
    project, marks = repository(tmp_path / "project"), tmp_path / "marks"
    commit = git(project, "rev-parse", "HEAD").strip()
    arm(project, marks)
    assert audit.revision(project) == (commit, True)
    assert {path.name for path in project_module._tracked(project)} == {"model.py", "rows.dat", ".gitattributes"}
    assert list(project_module._ignored(project)) == []
    run_git(project, "cat-file", "-e", "ab" * 20)  # which is not there
    run_git(project, "diff")
    run_git(project, "fetch", "away")
    assert os.listdir(marks) == []
    for arguments in (["status"], ["tag", "-a", "-m", "x", "v1"], ["diff"], ["fetch", "away"]):
        command = ["git", "-C", str(project), *arguments]
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60)
    names = {"fsmonitor", "clean", "gpg", "ssh"}
    assert {f"project-{name}" for name in names} <= set(os.listdir(marks)), "Git itself does run them"


def test_a_submodule_is_looked_at_in_the_same_way(tmp_path: Path) -> None:
    library, project, marks = repository(tmp_path / "library"), repository(tmp_path / "project"), tmp_path / "marks"
    git(project, "-c", "protocol.file.allow=always", "submodule", "add", str(library), "inside")
    git(project, "commit", "-m", "second")
    assert audit.revision(project)[1] is False
    config = Path(git(project / "inside", "rev-parse", "--absolute-git-dir").strip())
    marks.mkdir()
    (tmp_path / "program").write_text(f"#!/bin/sh\ntouch {marks}/run\ncat\n")
    (tmp_path / "program").chmod(0o755)
    git(config, "config", "core.fsmonitor", str(tmp_path / "program"))
    git(config, "config", "filter.evil.clean", str(tmp_path / "program"))
    assert audit.revision(project)[1] is False
    (project / "inside/rows.dat").write_text("2\n")
    assert audit.revision(project)[1] is True
    assert os.listdir(marks) == []


def test_a_name_that_cannot_be_switched_off_is_refused(tmp_path: Path) -> None:
    project = repository(tmp_path / "project")
    git(project, "config", "filter.a=b.clean", "/bin/false")
    assert audit.revision(project) == (None, True)
    with pytest.raises(project_module.UsageError, match="its setting 'filter.a=b.clean' cannot be switched off"):
        project_module._tracked(project)


def test_filters_of_the_user_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as Git LFS: without its filter, each of its files would count as changed."""
    (tmp_path / "config").write_text('[filter "evil"]\n\tclean = sed s/2/1/\n')
    project = repository(tmp_path / "project")
    (project / "rows.dat").write_text("2\n")
    assert audit.revision(project)[1] is True
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    assert audit.revision(project)[1] is False


def test_one_function_calls_git() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package.rstrip(".")).rglob("*.py")]
    calling = [path.relative_to(ROOT) for path in files if re.search(r"[\[(]\s*[\"']git[\"'],", path.read_text())]
    assert calling == [Path("infra/audit.py")]
