"""What is packed and what is left out: secrets, sources, links, data without Git, and `code.include`."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from infra import project, scratch
from infra.files import tag
from infra.project import ProjectFiles, choose
from infra.settings import state_folder
from infra.store import Store, open_store
from infra.written_files import LIST, record_written
from tests.support.files import git, write_files


@pytest.fixture(params=["git", "plain"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    write(folder, "pyproject.toml", "net.py", "secrets/__init__.py", "vocab.json")
    if request.param == "git":
        git(folder, "init")
    return folder


KEPT = {"pyproject.toml", "net.py", "secrets/__init__.py", "vocab.json"}


def write(root: Path, *names: str, text: str = "1") -> None:
    write_files(root, dict.fromkeys(names, text))


def reasons(chosen: ProjectFiles) -> dict[str, str]:
    return {one.path: one.why for one in chosen.left_out}


def test_secrets_and_sources_stay_out(root: Path, store: Store) -> None:
    write(root, "secrets/db.json", "credentials/key.json", "token.json", "terraform.tfstate")
    write(root, "raw/rows.json", "raw/rows.py", "raw/notes.txt")
    sources = [root / "raw/rows.json", root / "raw/rows.py"]
    chosen = choose(root, store, sources=sources)
    assert chosen.packed.keys() == KEPT | {"raw/notes.txt", "raw/rows.py"}, "a module that is read as data is code too"
    secrets = ["credentials/key.json", "secrets/db.json", "terraform.tfstate", "token.json"]
    assert reasons(chosen) == {**dict.fromkeys(secrets, project.SECRET), "raw/rows.json": project.SOURCE}
    assert {one.bytes for one in chosen.left_out} == {1}


def test_the_wheels_of_an_environment_stay_out(root: Path, store: Store) -> None:
    wheel = "wheels/helper-1-py3-none-any.whl"
    write(root, wheel, "wheels/README")
    chosen = choose(root, store, environment=True)
    assert (chosen.packed.keys(), reasons(chosen)) == (KEPT | {"wheels/README"}, {wheel: project.WHEEL})
    for options in ({}, {"environment": True, "include": ["wheels"]}):
        assert wheel in choose(root, store, **options).packed


def test_links_stay_within_what_is_packed(root: Path, store: Store, tmp_path: Path) -> None:
    write(tmp_path, ".aws/credentials", "shared/words.txt", "shared/more/x.py")
    write(root, "secrets/db.json", "raw.json", ".hidden/x.json", "net/deep.txt")
    links = {
        "notes.txt": tmp_path / ".aws/credentials",
        "words.txt": tmp_path / "shared/words.txt",
        "more": tmp_path / "shared/more",
        "module.py": tmp_path / "shared/more/x.py",
        "db.txt": root / "secrets/db.json",
        "again.txt": root / "db.txt",
        "rows.txt": root / "raw.json",
        "hidden.txt": root / ".hidden/x.json",
        "inside.txt": root / "net/deep.txt",
        "twice.txt": root / "inside.txt",
        "broken.txt": root / "nothing",
    }
    links |= {"loop.py": root / "loop.py", "loop.txt": root / "loop.txt"}
    for name, target in links.items():
        (root / name).symlink_to(target)
    chosen = choose(root, store, sources=[root / "raw.json"])
    assert chosen.packed.keys() == KEPT | {"net/deep.txt", "inside.txt", "twice.txt"}
    found = reasons(chosen)
    left = ["notes.txt", "words.txt", "module.py", "db.txt", "again.txt", "hidden.txt"]
    assert {name: found[name] for name in left} == dict.fromkeys(left, project.LINK)
    assert found["rows.txt"] == project.SOURCE


def test_a_tracked_folder_that_became_a_link_is_not_followed(tmp_path: Path, store: Store) -> None:
    root = tmp_path / "project"
    write(root, "pyproject.toml", "part/x.py", "part/x.txt")
    write(tmp_path, "outside/x.py", "outside/x.txt")
    git(root, "init")
    git(root, "add", ".")
    shutil.rmtree(root / "part")
    (root / "part").symlink_to(tmp_path / "outside")
    assert choose(root, store).packed.keys() == {"pyproject.toml"}


def test_without_git_data_stay_out(root: Path, store: Store) -> None:
    data = ["rows.csv", "rows.parquet", "rows.jsonl", "a/x.npy", "a/x.NPZ", "model.pt", "cat.png", "rows.txt.gz"]
    # Copies, dumps and logs are data, too.
    data += ["rows.csv~", "raw.csv.bak", "rows.csv.old", "rows.csv.txt", "dump.sql", "db_dump.sql", "mail.mbox", "core"]
    data += ["core.1234", "run.log", "run.log.1", "analysis.ipynb"]
    texts = {"words.txt", "labels.json", "settings.yaml", "query.sql", "core.txt", "notes.txt.bak", "labels.json~"}
    write(root, *data, *texts)
    chosen = choose(root, store)
    tracked = (root / ".git").exists()
    assert chosen.packed.keys() == KEPT | texts | set(data if tracked else [])
    assert reasons(chosen) == dict.fromkeys([] if tracked else data, project.DATA)


def test_a_hard_link_to_a_source_is_the_source(root: Path, store: Store, tmp_path: Path) -> None:
    write(tmp_path, "far.txt")
    write(root, "near.txt", "other.txt")
    for source, name in ((tmp_path / "far.txt", "words.txt"), (root / "near.txt", "again.txt")):
        (root / name).hardlink_to(source)
    sources = [tmp_path / "far.txt", root / "near.txt", root / "gone.txt"]
    chosen = choose(root, store, sources=sources)
    assert chosen.packed.keys() == KEPT | {"other.txt"}
    assert reasons(chosen) == dict.fromkeys(["again.txt", "near.txt", "words.txt"], project.SOURCE)
    assert "words.txt" in choose(root, store, sources=sources, include=["words.txt"]).packed


def test_what_dvc_makes_and_stage_verbs_write_stays_out(root: Path, store: Store) -> None:
    write(root, "rows.json.dvc", text="outs: [{path: rows.json, md5: ab}]")
    write(root, "dvc.yaml", text="stages: {a: {cmd: x, wdir: made, outs: [b.txt, {c.txt: {cache: false}}, d]}}")
    write(root, "broken/dvc.yaml", text="stages: [")
    write(root, "rows.json", "made/b.txt", "made/c.txt", "made/d/e.txt", "made/f.txt")
    ref = {"uri": "datasets/a-0", "id": "b", "seal": "c"}
    write(root, "handoffs/dataset.json", text=json.dumps({"schema_version": 1, "ref": ref, "key": "a"}))
    chosen = choose(root, store)
    assert chosen.packed.keys() == KEPT | {"rows.json.dvc", "dvc.yaml", "broken/dvc.yaml", "made/f.txt"}
    made = ["rows.json", "made/b.txt", "made/c.txt", "made/d/e.txt"]
    assert reasons(chosen) == {
        **dict.fromkeys(made, project.TRACKED_DATA),
        "handoffs/dataset.json": project.HANDOFF,
    }


def test_another_store_of_the_project_stays_out(root: Path, store: Store) -> None:
    open_store(str(root / "other"))
    write(root, "other/runs/r/notes.txt", "shop/store.json", "shop/x.py")
    names = choose(root, store).packed.keys()
    assert not [name for name in names if name.startswith("other/")]
    if (root / ".git").exists():
        assert names == KEPT | {"shop/store.json", "shop/x.py"}, "a file of the user's that has the same name"
    open_store(str(root))
    assert choose(root, store).packed.keys() >= KEPT, "a store at the project's root does not hide the project"


def test_folders_that_trainwright_wrote_stay_out_wherever_they_lie(
    root: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(root / "tmp"))
    monkeypatch.setenv("PREFECT_HOME", str(root / "prefect"))
    for home in ("earlier/state", "state"):
        monkeypatch.setenv("TRAINWRIGHT_HOME", str(root / home))
        (root / home).parent.mkdir(exist_ok=True)
        write(state_folder(), "withheld/log.txt", "module.py")
    write(root, "tmp/rows.txt", "prefect/logs.txt", "shared/notes.txt", "shared/net.py")
    write(root, "exported/README.md", "theirs/README.md", "theirs/export.json")
    write(root, "exported/export.json", text=json.dumps({"target": "torch", "version_ref": {}, "checkpoint": {}}))
    (root / "reproduced").mkdir()
    tag(root / "reproduced")
    write(root, "reproduced/code/net.py")
    with scratch.make("test", root=root / "shared") as folder:
        write(folder.path, "rows.txt")
        chosen = choose(root, store)
        ours = ["earlier/state/", "exported/", "prefect/", "reproduced/", f"shared/{folder.path.name}/", "state/"]
    theirs = {"shared/notes.txt", "shared/net.py", "theirs/README.md", "theirs/export.json"}
    assert chosen.packed.keys() == KEPT | theirs
    assert reasons(chosen) == dict.fromkeys([*ours, "tmp/"], project.WRITTEN)
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(root))
    with pytest.raises(UsageError, match=r"^Trainwright's own files lie in the project's root"):
        choose(root, store)


def test_a_file_that_a_command_wrote_stays_out_until_its_user_changes_it(
    root: Path, store: Store, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(root, "out/page.html", "out/moved.html", "out/same.html", "out/theirs.html", text="a page with a value")
    for name in ("page", "same", "theirs"):
        record_written(root / f"out/{name}.html")
    record_written(root / "out/moved.html")
    os.rename(root / "out/moved.html", root / "elsewhere.html")
    write(root, "out/same.html", text="a page with a value")
    os.utime(root / "out/same.html", (1, 1))
    with caplog.at_level(logging.WARNING):
        before = choose(root, store)
    ours = ["elsewhere.html", "out/page.html", "out/same.html"]
    assert reasons(before) == dict.fromkeys([*ours, "out/theirs.html"], project.WRITTEN)
    assert (before.packed.keys(), caplog.text) == (KEPT, "")
    write(root, "out/theirs.html", text="a template of their own")
    with caplog.at_level(logging.WARNING):
        after = choose(root, store)
    assert reasons(after) == dict.fromkeys(ours, project.WRITTEN)
    assert after.packed.keys() == KEPT | {"out/theirs.html"}
    assert "out/theirs.html is packed as code: Trainwright wrote a file there, but its content" in caplog.text
    caplog.clear()
    choose(root, store, include=["out/theirs.html"])
    assert caplog.text == "", "its user has said that it is code"
    with pytest.raises(UsageError, match=r"^out/page.html, which an argument .* is not packed: Trainwright wrote it"):
        choose(root, store, named=[root / "out/page.html"])
    with pytest.raises(UsageError, match=r"which a glob never packs: Trainwright wrote it"):
        choose(root, store, include=["out/p*"])
    assert "out/page.html" in choose(root, store, include=["out/page.html"]).packed
    (home / LIST).write_text("[{}]")
    with pytest.raises(UsageError, match=rf"^{home / LIST}, the list of the files that commands wrote, cannot"):
        choose(root, store)


def test_what_git_ignores_is_reported(tmp_path: Path, store: Store) -> None:
    root = tmp_path / "project"
    write(root, "net.py", "vocab.bin", "raw/a.csv", "raw/b.csv", "__pycache__/x", ".cache/x")
    write(root, ".gitignore", text="vocab.bin\nraw/\n__pycache__\n.cache\n")
    git(root, "init")
    found = reasons(choose(root, store))
    assert found == {
        ".gitignore": project.HIDDEN,
        "vocab.bin": project.IGNORED,
        "raw/": project.IGNORED,
    }


def test_include_brings_in_what_a_glob_names_but_no_secret_and_an_exact_path_whatever_it_is(
    root: Path, store: Store, tmp_path: Path
) -> None:
    write(root, "words/a.npy", "words/deep/b.csv", "words/token.json", "words/.env", "words/__pycache__/x.pyc")
    write(root, "large.txt", ".hidden/x", text="1" * 2**21)
    write(tmp_path, "far.txt")
    (root / "words/far.npy").symlink_to(tmp_path / "far.txt")
    sources = [root / "words/deep/b.csv"]
    for pattern in ("words", "words/**", "**/*.npy"):
        chosen = choose(root, store, include=[pattern], sources=sources)
        assert chosen.packed.keys() - KEPT - {"large.txt"} == {"words/a.npy"}
        assert set(chosen.included) <= chosen.packed.keys()
    found = reasons(choose(root, store, include=["words/**"], sources=sources))
    left = {"words/token.json": project.SECRET, "words/deep/b.csv": project.SOURCE, "words/far.npy": project.LINK}
    assert {name: found[name] for name in left} == left
    exact = [*left, ".hidden/x", "large.txt"]
    assert choose(root, store, include=exact, sources=sources).packed.keys() >= set(exact)


NOT_INCLUDED = {
    "nothing/*.json": "no file matches nothing/*.json (from the project's root {root}). Correct the path or glob.",
    "gone.json": "no file matches gone.json (from the project's root {root}). Correct the path or glob.",
    "secrets/*.json": "secrets/*.json matches secrets/db.json, which a glob never packs: its name looks "
    "like a secret's. If it may be stored, name it by its exact path.",
}


@pytest.mark.parametrize("pattern", NOT_INCLUDED)
def test_a_pattern_that_brings_in_nothing_is_named(pattern: str, root: Path, store: Store) -> None:
    write(root, "secrets/db.json")
    with pytest.raises(UsageError) as caught:
        choose(root, store, include=[pattern])
    assert str(caught.value) == f"code.include.0: {NOT_INCLUDED[pattern].format(root=root)}"


def test_an_argument_brings_in_no_secret_but_include_does(root: Path, store: Store, tmp_path: Path) -> None:
    write(root, "secrets/db.json", "words.npy")
    write(tmp_path, "far.txt")
    (root / "far.txt").symlink_to(tmp_path / "far.txt")
    assert "words.npy" in choose(root, store, named=[root / "words.npy"]).packed
    for name, why in (
        ("secrets/db.json", "its name looks like a secret's"),
        ("far.txt", "it is a link to what is not"),
    ):
        with pytest.raises(UsageError) as caught:
            choose(root, store, named=[root / name])
        assert caught.value.message.startswith(f"{name}, which an argument in the spec names, is not packed: {why}")
        assert f"add code.include: [{name}] to the spec" in str(caught.value.remedy)
        assert name in choose(root, store, named=[root / name], include=[name]).packed
