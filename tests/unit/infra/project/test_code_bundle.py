"""A user's project is packed whole, without what does not belong to it, and laid out again byte for byte."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from data_contracts.errors import CorruptError, UsageError
from infra import project as project_module
from infra.code_bundle import pack, project_root, unpack
from infra.store import Store, open_store
from tests.support.damage import overwrite
from tests.support.files import git, write_files


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {"pyproject.toml": "", "net/__init__.py": "", "net/model.py": "class Net: ...\n", "README.md": "hello",
             "flows/daily.py": "x = 1", "tasks/one.py": "x = 1", "specs/spec.yaml": "version: 1"}  # fmt: skip
    return write_files(tmp_path / "project", files)


def laid_out(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


LEFT_OUT: dict[str, str | bytes] = {
    ".env": "SECRET=1",
    ".git-credentials": "secret",
    "server.pem": "secret",
    "credentials.json": "secret",
    "secrets.yaml": "secret",
    "prod.env": "secret",
    "deploy/Service-Account-prod.json": "secret",
    "client_secret_1.json": "secret",
    "kubeconfig": "secret",
    "_netrc": "secret",
    ".venv/lib/x.py": "x = 1",
    "env/pyvenv.cfg": "",
    "env/lib/x.py": "x = 1",
    "net/__pycache__/model.cpython-311.pyc": b"\0",
    ".trainwright/store.json": "{}",
    "elsewhere/store.json": "{}",
    "elsewhere/datasets/x.py": "x = 1",
    "data.txt": b"1\n" * 2**19 + b"1",
    "data.csv": "1,2",
}


def test_it_packs_what_belongs_and_lays_it_out_again(
    project: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = laid_out(project) | {"words.txt": b"1,2", "large.py": b"#" * 2**21, "manifest.json": b"{}"}
    write_files(project, {**LEFT_OUT, **{name: kept[name] for name in ("words.txt", "large.py", "manifest.json")}})
    bundle = pack(project / "specs", store)
    assert bundle.root == project
    assert bundle.ref.uri.startswith("code/")
    assert laid_out(unpack(store, bundle.ref, tmp_path / "out")) == kept
    write_files(tmp_path / "copy", kept)
    monkeypatch.setattr(project_module.shutil, "which", lambda name: None)  # no Git: everything is walked
    elsewhere = pack(tmp_path / "copy", store)
    assert (elsewhere.ref, elsewhere.digest) == (bundle.ref, bundle.digest)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"^The folder .*/file/out on this machine cannot be used \(Not a directory\)"):
        unpack(store, bundle.ref, tmp_path / "file/out")


def test_git_decides_where_there_is_a_repository(project: Path, store: Store, tmp_path: Path) -> None:
    kept = laid_out(project)
    git(project, "init")
    git(project, "add", ".")
    write_files(
        project, {".gitignore": "ignored*\n", "ignored.py": "x = 1", "ignored/a.py": "x = 1", "new.py": "x = 1"}
    )
    (project / "tasks/one.py").unlink()
    bundle = pack(project, store)
    found = laid_out(unpack(store, bundle.ref, tmp_path / "out"))
    assert found.keys() == kept.keys() - {"tasks/one.py"} | {"new.py"}


def test_where_git_fails_nothing_is_packed_that_it_may_ignore(
    project: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a repository of another owner: an empty answer is no permission to pack the ignored files."""
    git(project, "init")
    write_files(project, {".gitignore": "private.yaml\n", "private.yaml": "password: x"})
    (project / ".git/config").write_text("[core]\n\trepositoryformatversion = 99\n")
    with pytest.raises(UsageError) as caught:
        pack(project / "specs", store)
    assert caught.value.message.startswith(f"Git does not say which files of the project {project} it ignores: fatal: ")
    assert "\n" not in caught.value.message
    assert caught.value.remedy.startswith(f"Fix the error that `git -C {project} status` shows")

    def hangs(command: list[str], **more: object) -> None:
        raise subprocess.TimeoutExpired(command, 60)

    monkeypatch.setattr(project_module.subprocess, "run", hangs)
    with pytest.raises(UsageError, match=r"ignores: it had not answered after 60 s\."):
        pack(project, store)
    assert store.list("code") == []


def test_a_file_name_that_is_not_utf_8_is_named(project: Path, store: Store) -> None:
    Path(os.fsdecode(os.fsencode(project) + b"/net/caf\xe9.py")).write_text("x = 1")
    with pytest.raises(UsageError, match=r"^'net/caf\\udce9\.py' cannot be a file's name in the project /"):
        pack(project, store)


def test_a_link_put_into_a_bundle_is_removed_and_not_followed(project: Path, store: Store, tmp_path: Path) -> None:
    bundle = pack(project, store)
    outside = tmp_path / "outside"
    write_files(outside, {"kept": "1"})
    Path(store.uri, bundle.ref.uri, "project/link").symlink_to(outside)
    Path(store.uri, bundle.ref.uri, "project/net/model.py").unlink()
    Path(store.uri, bundle.ref.uri, "project/net/model.py").symlink_to(outside / "kept")
    again = pack(project, store)
    assert (again.ref.uri, again.digest) == (f"{bundle.ref.uri}-1", bundle.digest), "what is deleted stays deleted"
    assert laid_out(outside) == {"kept": b"1"}
    assert laid_out(unpack(store, again.ref, tmp_path / "out")) == laid_out(project)


def test_a_store_inside_the_project_is_no_part_of_it(project: Path, tmp_path: Path) -> None:
    git(project, "init")
    store = open_store(str(project / "mystore"))
    first = pack(project, store)
    assert pack(project, store) == first
    assert not [name for name in laid_out(unpack(store, first.ref, tmp_path / "out")) if name.startswith("mystore")]


EDITS = [
    ("README.md", "other", False),
    ("data.json", "{}", False),
    ("net/model.py", "class Net: pass\n", True),
    ("net/new.py", "", True),
    ("settings.yaml", "lr: 2", True),  # named by the spec
]


@pytest.mark.parametrize(("name", "text", "changes"), EDITS)
def test_the_digest_covers_python_and_what_the_spec_names(
    name: str, text: str, changes: bool, project: Path, store: Store, tmp_path: Path
) -> None:
    named = project / "settings.yaml"
    named.write_text("lr: 1")
    before = pack(project, store, [named])
    write_files(project, {name: text})
    after = pack(project, store, [named])
    assert (after.digest != before.digest) is changes
    assert after.ref != before.ref, "the bundle holds the files as they are now, whatever the digest covers"
    assert laid_out(unpack(store, after.ref, tmp_path / "out"))[name] == text.encode()


def test_what_the_spec_names_counts_wherever_it_lies(project: Path, store: Store, tmp_path: Path) -> None:
    outside, elsewhere = tmp_path / "a" / "config.yaml", tmp_path / "b" / "config.yaml"
    write_files(tmp_path, {"a/config.yaml": "lr: 1", "b/config.yaml": "lr: 1", "project/ignored.bin": b"0" * 2**21})
    assert pack(project, store, [outside]).digest == pack(project, store, [elsewhere]).digest
    assert pack(project, store, [outside]).digest != pack(project, store).digest
    inside = pack(project, store, [project / "ignored.bin"])
    assert "ignored.bin" in laid_out(unpack(store, inside.ref, tmp_path / "out"))
    with pytest.raises(UsageError, match=r"gone\.yaml, which the spec names, does not exist"):
        pack(project, store, [project / "gone.yaml"])


FORMS = ["{}.py", "{}/__init__.py", "{}/deep/er.py"]


@pytest.mark.parametrize(("name", "form"), zip(("training", "infra", "data_contracts"), FORMS, strict=True))
def test_our_names_are_refused_at_the_top_only(name: str, form: str, project: Path, store: Store) -> None:
    write_files(project, {f"{name}/notes.csv": "1", f"net/{name}.py": "x = 1"})
    pack(project, store)
    if form == "{}.py":
        (project / name / "notes.csv").unlink()
        (project / name).rmdir()
    write_files(project, {form.format(name): "x = 1"})
    with pytest.raises(UsageError) as caught:
        pack(project, store)
    first = form.format(name).split("/")[0]
    kind = "module" if form == "{}.py" else "package"
    assert str(caught.value) == (
        f"{project / first}: a top-level {kind} called '{name}' would hide Trainwright's own. "
        f"Nest it: move it to project/my_project/{first} and write my_project.{name} wherever {name} was imported "
        f"or named."
    )


def test_a_changed_byte_in_a_bundle_is_named(project: Path, store: Store, tmp_path: Path) -> None:
    bundle = pack(project, store)
    stored = tmp_path / "store" / bundle.ref.uri / "project/net/model.py"
    overwrite(stored, "class Bad: ...\n")
    with pytest.raises(CorruptError, match=r"project/net/model\.py is not what was sealed"):
        unpack(store, bundle.ref, tmp_path / "out")
    stored.unlink()
    with pytest.raises(CorruptError, match=r"project/net/model\.py is missing"):
        unpack(store, bundle.ref, tmp_path / "out")
    again = pack(project, store)
    assert (again.ref.uri, again.ref.id) == (f"{bundle.ref.uri}-1", bundle.ref.id), (
        "packed again beside the damaged one"
    )
    assert store.exists(f"{bundle.ref.uri}/manifest.json"), "what names the damaged one still finds it"
    assert laid_out(unpack(store, again.ref, tmp_path / "whole")) == laid_out(project)


def test_the_root_is_the_nearest_project(tmp_path: Path, repository: Path) -> None:
    write_files(tmp_path, {"outer/pyproject.toml": "", "outer/inner/.git/HEAD": "", "outer/inner/specs/deep/x": ""})
    assert project_root(tmp_path / "outer/inner/specs/deep") == tmp_path / "outer/inner"
    assert project_root(tmp_path / "outer") == tmp_path / "outer"
    alone = tmp_path / "alone"
    alone.mkdir()
    assert project_root(alone) == alone
    assert project_root(repository / "docs") == repository / "docs", "our own checkout is nobody's project"


def test_a_file_that_no_machine_could_read_from_the_store_is_refused(project: Path, store: Store) -> None:
    write_files(project, {"big.npy": b""})
    os.truncate(project / "big.npy", 2**28 + 1)
    with pytest.raises(UsageError, match=r"code.include: big.npy is larger than 256 MiB.* first weights come by"):
        pack(project / "specs", store, include=["big.npy"])
