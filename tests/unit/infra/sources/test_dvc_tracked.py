"""Files that DVC tracks, in a real repository with two revisions: each is read as it was at its own."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from blake3 import blake3

from data_contracts.errors import CorruptError, UsageError
from data_contracts.pipeline_spec import SourceSpec
from infra.sources import Places, digest_now
from tests.unit.infra.sources.conftest import Raw

OLD, NEW = b"a,b\n1,x\n", b"a,b\n2,y\n3,z\n"


class Repository(Raw):
    """A Git and DVC repository. The spec's folder is `project` in it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "project")
        self.folder = folder
        self.root.mkdir(parents=True)
        self.git("init", "-q")
        self.dvc("init", "-q")
        self.dvc("config", "core.check_update", "false")

    def git(self, *arguments: str) -> str:
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        return subprocess.run(
            ["git", *who, *arguments], cwd=self.folder, check=True, capture_output=True, text=True
        ).stdout.strip()

    def dvc(self, *arguments: str) -> None:
        subprocess.run([sys.executable, "-m", "dvc", *arguments], cwd=self.folder, check=True, capture_output=True)

    def commit(self, tag: str) -> str:
        self.dvc("add", "-q", "project/data/t.csv", "project/data/parts", "project/data/hive")
        self.git("add", "-A")
        self.git("commit", "-qm", tag)
        self.git("tag", tag)
        return self.git("rev-parse", "HEAD")

    def forget(self) -> None:
        """Leave no bytes in the working tree nor in the cache."""
        shutil.rmtree(self.folder / ".dvc" / "cache")
        shutil.rmtree(self.root / "data" / "parts")
        (self.root / "data" / "t.csv").unlink()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The repository as it was made: never changed by a test."""
    repository = Repository(tmp_path_factory.mktemp("dvc") / "repository")
    commits = {}
    for tag, data in (("v1", OLD), ("v2", NEW)):
        repository.write("data/t.csv", data)
        repository.write("data/parts/1.csv.gz", gzip.compress(data, mtime=0))
        repository.write("data/parts/2.csv", data)
        repository.write("plain.csv", data)
        repository.write("data/hive/fold=a/1.csv", data)
        commits[tag] = repository.commit(tag)
    return repository.folder, commits


@pytest.fixture
def repository(made: tuple[Path, dict[str, str]], tmp_path: Path) -> Repository:
    """A copy of it for one test."""
    copy = Repository.__new__(Repository)
    copy.folder = tmp_path / "copy"
    shutil.copytree(made[0], copy.folder, symlinks=True)
    Raw.__init__(copy, copy.folder / "project")
    copy.cache = tmp_path / "digests"
    return copy


@pytest.mark.parametrize(
    ("rev", "tag", "data"), [("v1", "v1", OLD), ("HEAD~1", "v1", OLD), ("v2", "v2", NEW), ("HEAD", "v2", NEW)]
)
def test_a_revision_is_resolved_to_its_commit_and_read_as_it_was(
    rev: str, tag: str, data: bytes, repository: Repository, made: tuple[Path, dict[str, str]]
) -> None:
    source = {"uri": "data/t.csv", "rev": rev}
    repository.write("data/t.csv", b"a,b\n0,changed\n")  # what lies there now does not matter
    (file,) = repository.resolve(source)
    assert (file.uri, file.rev, file.bytes) == ("project/data/t.csv", made[1][tag], len(data))
    assert file.blake3 == blake3(data).hexdigest()
    repository.git("tag", "-f", tag, "HEAD~1" if tag == "v2" else "HEAD")  # nor where the name points later
    assert repository.read(source, files=[file]).num_rows == data.count(b"\n") - 1


def test_without_a_revision_the_file_is_read_as_it_lies_there(repository: Repository) -> None:
    repository.write("data/t.csv", b"a,b\n0,changed\n")
    (file,) = repository.resolve("data/t.csv")
    assert file.rev is None
    assert repository.read("data/t.csv").to_pylist() == [{"a": 0, "b": "changed"}]


def test_a_glob_finds_what_a_tracked_folder_held(repository: Repository) -> None:
    source = {"uri": "data/parts/*.csv*", "rev": "v1"}
    assert [file.uri for file in repository.resolve(source)] == [
        "project/data/parts/1.csv.gz",
        "project/data/parts/2.csv",
    ]
    assert repository.read(source).to_pylist() == [{"a": 1, "b": "x"}] * 2
    rows = repository.read({**source, "format": "files", "pattern": "{name}.csv"} | {"uri": "data/*/2.csv"})
    assert rows.to_pylist() == [{"path": "parts/2.csv", "name": "2", "bytes": OLD}]


def test_folders_of_a_tracked_folder_are_columns(repository: Repository) -> None:
    for uri in ("data/hive", "data/hive/**/*.csv", "data/hive/fold=a/1.csv"):
        [file] = repository.resolve({"uri": uri, "rev": "v1"})
        assert (file.columns, file.column_types) == ({"fold": "a"}, {"fold": "string"})
    assert repository.read({"uri": "data/hive", "rev": "v1"}).column("fold").to_pylist()[0] == "a"


def test_a_folder_with_signs_of_a_pattern_in_its_name_is_itself(repository: Repository) -> None:
    repository.root.rename(repository.folder / "run[1]")
    repository.root = repository.folder / "run[1]"
    repository.git("add", "-A")
    repository.git("commit", "-qm", "renamed")
    assert len(repository.resolve({"uri": "data/*.csv", "rev": "HEAD"})) == 1
    parts = {"uri": "data/parts/*", "rev": "HEAD"}
    assert repository.resolve({"uri": "data/parts", "rev": "HEAD"}) == repository.resolve(parts)
    assert len(repository.resolve(parts)) > 1
    assert repository.resolve({"uri": "*/parts/*", "rev": "HEAD"}) == repository.resolve(parts)
    assert repository.resolve({"uri": "**/parts/*", "rev": "HEAD"}) == repository.resolve(parts)


def test_a_file_that_only_git_tracks_is_read_at_its_revision_too(repository: Repository) -> None:
    assert repository.read({"uri": "plain.csv", "rev": "v1"}).to_pylist() == [{"a": 1, "b": "x"}]


def test_bytes_come_from_the_remote_when_the_cache_has_none(repository: Repository, tmp_path: Path) -> None:
    repository.dvc("remote", "add", "-d", "-f", "far", str(tmp_path / "remote"))
    repository.dvc("push", "-q", "-A")
    repository.forget()
    assert repository.read({"uri": "data/t.csv", "rev": "HEAD"}).num_rows == 2


@pytest.mark.parametrize("option", ["configpath", "credentialpath"])
def test_no_program_runs_that_a_file_of_the_repository_names(
    option: str, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "is restored after the test")
        monkeypatch.delenv(name)
    section = "profile far" if option == "configpath" else "far"
    (repository.folder / "aws.ini").write_text(f"[{section}]\ncredential_process = touch {tmp_path / 'ran'}\n")
    repository.dvc("remote", "add", "-d", "-f", "far", "s3://far/x")
    facts = {"endpointurl": "http://127.0.0.1:9", "profile": "far", option: str(repository.folder / "aws.ini")}
    for name, value in facts.items():
        repository.dvc("remote", "modify", "far", name, value)
    repository.forget()
    with pytest.raises(UsageError):
        repository.read({"uri": "data/t.csv", "rev": "HEAD"})
    assert not (tmp_path / "ran").exists()


BAD = {
    "no such revision": ({"uri": "data/t.csv", "rev": "v9"}, r"rev v9 is not a revision of the Git repository"),
    "not there then": (
        {"uri": "data/none.csv", "rev": "v1"},
        r"data.source.0.uri: no file matches data/none.csv at v1",
    ),
    "no match then": (
        {"uri": "data/*.parquet", "rev": "v1"},
        r"data.source.0.uri: no file matches data/\*.parquet at v1",
    ),
    "not there then, with what to do": (
        {"uri": "data/late.csv", "rev": "HEAD"},
        r"late.csv at HEAD .* Neither Git nor DVC may track it there: `dvc add` and commit it, or name a rev that has",
    ),
    "outside": ({"uri": "../../x.csv", "rev": "v1"}, r"../../x.csv lies outside the DVC repository"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_sentence(case: str, repository: Repository) -> None:
    source, sentence = BAD[case]
    with pytest.raises(UsageError, match=sentence):
        repository.resolve(source)


def test_bytes_that_are_nowhere_are_named(repository: Repository) -> None:
    files = repository.resolve({"uri": "data/t.csv", "rev": "v1"})
    repository.forget()
    for read in (
        lambda: repository.resolve({"uri": "data/t.csv", "rev": "HEAD"}),
        lambda: repository.read({"uri": "data/t.csv", "rev": "v1"}, files=files),
    ):
        with pytest.raises(
            UsageError, match=r"project/data/t.csv at [0-9a-f]{40} is neither in DVC's cache nor in a rem"
        ):
            read()
    source = SourceSpec.model_validate({"uri": "data/t.csv", "rev": "v1"})
    assert digest_now(files[0], Places([source], repository.root)) is None
    with pytest.raises(UsageError, match="is not in a DVC repository"):
        digest_now(files[0], Places([source], Path("/")))


def test_a_tracked_folder_that_was_never_pushed_is_named(repository: Repository, tmp_path: Path) -> None:
    repository.forget()
    source = {"uri": "data/parts/2.csv", "rev": "v1"}
    lost = (
        r"^The list of the files in the folder of .*parts/.* at [0-9a-f]{40} is neither .* Run `dvc pull` here, or `dvc"
    )
    for read in (
        lambda: repository.resolve(source),
        lambda: repository.resolve({"uri": "data/parts/*", "rev": "v1"}),
    ):
        with pytest.raises(UsageError, match=lost):
            read()
    (repository.folder / ".dvc/config").write_text("[core]\nremote = far\n['remote \"far\"']\nurl = ../../far\n")
    with pytest.raises(UsageError, match=lost):
        repository.resolve(source)


def test_an_output_of_a_pipeline_is_read_as_its_lock_says(repository: Repository) -> None:
    repository.write("data/u.csv", NEW)
    stages = "stages:\n  make:\n    cmd: cp data/t.csv made.csv\n    deps: [data/t.csv]\n    outs: [made.csv]\n"
    repository.write("dvc.yaml", stages)
    repository.commit("written")
    repository.write("data/t.csv", NEW)
    with pytest.raises(
        UsageError, match=r"made.csv is an output of dvc.yaml that no dvc.lock has at .* Run `dvc repro`"
    ):
        repository.resolve({"uri": "made.csv", "rev": "HEAD"})
    repository.dvc("repro", "-q", "project/dvc.yaml")
    repository.git("add", "-A")
    repository.git("commit", "-qm", "made")
    repository.write("made.csv", b"a,b\n0,changed\n")
    assert repository.read({"uri": "made.csv", "rev": "HEAD"}).num_rows == 2


def test_a_repository_in_a_folder_of_a_larger_one_is_read_with_its_relative_remote(tmp_path: Path) -> None:
    """As `dvc init --subdir` makes it in a monorepo; the spec lies in a folder of its own."""
    repository = Repository.__new__(Repository)
    repository.folder = tmp_path / "mono/team/model"
    Raw.__init__(repository, repository.folder / "spec")
    repository.cache = tmp_path / "digests"
    repository.root.mkdir(parents=True)
    (tmp_path / "mono/README").write_text("of the whole\n")
    for words in (
        ["init", "-q", str(tmp_path / "mono")],
        ["add", "-A", str(tmp_path / "mono")],
        ["commit", "-qm", "0"],
    ):
        repository.git(*words)
    repository.dvc("init", "-q", "--subdir")
    remote = "[core]\nremote = store\n['remote \"store\"']\nurl = ../../../../remote\n"
    (repository.folder / ".dvc/config").write_text(remote)
    repository.write("../data/t.csv", OLD)
    repository.dvc("add", "-q", "data")
    repository.git("add", "-A")
    repository.git("commit", "-qm", "1")
    (repository.folder / ".dvc/cache").rename(tmp_path / "remote")  # as `dvc push` lays it out
    repository.write("../data/t.csv", NEW)  # what lies there now does not matter
    for uri in ("../data/t.csv", "../data/*.csv", str(repository.folder / "data/t.csv")):
        assert repository.read({"uri": uri, "rev": "HEAD"}).to_pylist() == [{"a": 1, "b": "x"}]
    assert [file.uri for file in repository.resolve({"uri": "../data/*", "rev": "HEAD"})] == ["data/t.csv"]
    with pytest.raises(UsageError, match=r"no file matches ../data/t.csv at HEAD~1 .*name a rev that has it"):
        repository.resolve({"uri": "../data/t.csv", "rev": "HEAD~1"})
    repository.root = tmp_path / "mono"
    with pytest.raises(
        UsageError, match="is not in a DVC repository.* move the spec below the folder of `dvc init --sub"
    ):
        repository.resolve({"uri": "team/model/data/t.csv", "rev": "HEAD"})


def test_a_damaged_copy_in_the_cache_is_corrupt(repository: Repository) -> None:
    (copy,) = [
        path for path in (repository.folder / ".dvc/cache").rglob("*") if path.is_file() and path.read_bytes() == OLD
    ]
    copy.chmod(0o644)
    copy.write_bytes(OLD.replace(b"x", b"X"))
    with pytest.raises(CorruptError, match=r"DVC's copy of project/data/t.csv at [0-9a-f]{40} is damaged"):
        repository.resolve({"uri": "data/t.csv", "rev": "v1"})


@pytest.mark.parametrize(
    ("file", "data"),
    [
        (".git/config", b"[core]\n\trepositoryformatversion = 1\n[extensions]\n\tpartialClone = origin\n"),
        (".git/config", b"[core]\n\trepositoryformatversion = 9\n"),
        (".git/config", b"[core\n"),
        (".dvc/config", b"[[[junk"),
        (".git/index", b"junk of more than a few bytes"),
    ],
)
def test_a_repository_that_cannot_be_read_is_one_sentence(file: str, data: bytes, repository: Repository) -> None:
    (repository.folder / file).write_bytes(data)
    with pytest.raises(UsageError, match=r"^DVC cannot read the repository at .* \(\w+: .*\)\. Check it with"):
        repository.resolve({"uri": "data/t.csv", "rev": "v1"})
