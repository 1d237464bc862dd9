"""Files that DVC tracks, in a real repository with two revisions: each is read as it was at its own."""

from __future__ import annotations

import contextlib
import gzip
import shutil
from pathlib import Path

import pytest
from blake3 import blake3
from dvc.cli import main as dvc_main

from data_contracts.errors import CorruptError, UsageError
from data_contracts.pipeline_spec import SourceSpec
from infra.sources import Places, digest_now
from tests.support.files import git
from tests.unit.infra.sources.conftest import Raw

OLD, NEW = b"a,b\n1,x\n", b"a,b\n2,y\n3,z\n"


class Repository(Raw):
    """A Git and DVC repository. The spec's folder is `project` in it."""

    def __init__(self, folder: Path, below: str = "project") -> None:
        super().__init__(folder / below)
        self.folder, self.cache = folder, folder.parent / "digests"
        self.root.mkdir(parents=True, exist_ok=True)

    def git(self, *arguments: str) -> str:
        return git(self.folder, *arguments).strip()

    def dvc(self, *arguments: str) -> None:
        with contextlib.chdir(self.folder):
            assert dvc_main(list(arguments)) == 0

    def commit(self, message: str) -> str:
        self.git("add", "-A")
        self.git("commit", "-qm", message)
        return self.git("rev-parse", "HEAD")

    def write_config(self, text: str) -> None:
        (self.folder / ".dvc/config").write_text(text)

    def forget(self) -> None:
        """Leave no bytes in the working tree nor in the cache."""
        shutil.rmtree(self.folder / ".dvc" / "cache")
        shutil.rmtree(self.root / "data" / "parts")
        (self.root / "data" / "t.csv").unlink()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The repository as it was made: never changed by a test."""
    repository = Repository(tmp_path_factory.mktemp("dvc") / "repository")
    repository.git("init", "-q")
    repository.dvc("init", "-q")
    repository.write_config("[core]\ncheck_update = false\n")
    commits = {}
    for tag, data in (("v1", OLD), ("v2", NEW)):
        for name in ("data/t.csv", "data/parts/2.csv", "plain.csv", "data/hive/fold=a/1.csv"):
            repository.write(name, data)
        repository.write("data/parts/1.csv.gz", gzip.compress(data, mtime=0))
        repository.dvc("add", "-q", "project/data/t.csv", "project/data/parts", "project/data/hive")
        commits[tag] = repository.commit(tag)
        repository.git("tag", tag)
    return repository.folder, commits


@pytest.fixture
def repository(made: tuple[Path, dict[str, str]], tmp_path: Path) -> Repository:
    """A copy of it for one test."""
    shutil.copytree(made[0], tmp_path / "copy", symlinks=True)
    return Repository(tmp_path / "copy")


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


def test_a_glob_finds_what_a_tracked_folder_held(repository: Repository) -> None:
    source = {"uri": "data/parts/*.csv*", "rev": "v1"}
    names = ["project/data/parts/1.csv.gz", "project/data/parts/2.csv"]
    assert [file.uri for file in repository.resolve(source)] == names
    assert repository.read(source).to_pylist() == [{"a": 1, "b": "x"}] * 2
    rows = repository.read({**source, "format": "files", "pattern": "{name}.csv"} | {"uri": "data/*/2.csv"})
    assert rows.to_pylist() == [{"path": "parts/2.csv", "name": "2", "bytes": OLD}]
    # Git alone tracks this one.
    assert repository.read({"uri": "plain.csv", "rev": "v1"}).to_pylist() == [{"a": 1, "b": "x"}]
    for uri in ("data/hive", "data/hive/**/*.csv", "data/hive/fold=a/1.csv"):
        [file] = repository.resolve({"uri": uri, "rev": "v1"})
        assert (file.columns, file.column_types) == ({"fold": "a"}, {"fold": "string"})
    assert repository.read({"uri": "data/hive", "rev": "v1"}).column("fold").to_pylist()[0] == "a"


def test_a_folder_with_signs_of_a_pattern_in_its_name_is_itself(repository: Repository) -> None:
    repository.root.rename(repository.folder / "run[1]")
    repository.root = repository.folder / "run[1]"
    repository.commit("renamed")
    parts = repository.resolve({"uri": "data/parts/*", "rev": "HEAD"})
    assert [Path(file.uri).name for file in parts] == ["1.csv.gz", "2.csv"]
    for uri in ("data/parts", "*/parts/*", "**/parts/*"):
        assert repository.resolve({"uri": uri, "rev": "HEAD"}) == parts


def test_bytes_come_from_the_remote_when_the_cache_has_none(repository: Repository, tmp_path: Path) -> None:
    repository.dvc("remote", "add", "-d", "-f", "far", str(tmp_path / "remote"))
    repository.dvc("push", "-q", "-A")
    repository.forget()
    assert repository.read({"uri": "data/t.csv", "rev": "HEAD"}).num_rows == 2


def test_no_program_runs_that_a_file_of_the_repository_names(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As credentials; `test_named_places` has the same for its configuration."""
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "is restored after the test")
        monkeypatch.delenv(name)
    (repository.folder / "aws.ini").write_text(f"[far]\ncredential_process = touch {tmp_path / 'ran'}\n")
    place = f"endpointurl = http://127.0.0.1:9\nprofile = far\ncredentialpath = {repository.folder / 'aws.ini'}\n"
    repository.write_config(f"[core]\nremote = far\n['remote \"far\"']\nurl = s3://far/x\n{place}")
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
    lost = r"project/data/t.csv at [0-9a-f]{40} is neither in DVC's cache nor in a rem"
    with pytest.raises(UsageError, match=lost):
        repository.resolve({"uri": "data/t.csv", "rev": "HEAD"})
    with pytest.raises(UsageError, match=lost):
        repository.read({"uri": "data/t.csv", "rev": "v1"}, files=files)
    source = SourceSpec.model_validate({"uri": "data/t.csv", "rev": "v1"})
    assert digest_now(files[0], Places([source], repository.root)) is None
    with pytest.raises(UsageError, match="is not in a DVC repository"):
        digest_now(files[0], Places([source], Path("/")))
    listed = r"^The list of the files in the folder of .*parts/.* at [0-9a-f]{40} is neither .* Run `dvc pull` here, "
    for uri in ("data/parts/2.csv", "data/parts/*"):
        with pytest.raises(UsageError, match=listed):
            repository.resolve({"uri": uri, "rev": "v1"})
    repository.write_config("[core]\nremote = far\n['remote \"far\"']\nurl = ../../far\n")
    with pytest.raises(UsageError, match=listed):
        repository.resolve({"uri": "data/parts/2.csv", "rev": "v1"})


def test_an_output_of_a_pipeline_is_read_as_its_lock_says(repository: Repository) -> None:
    stages = "stages:\n  make:\n    cmd: cp data/t.csv made.csv\n    deps: [data/t.csv]\n    outs: [made.csv]\n"
    repository.write("dvc.yaml", stages)
    repository.commit("written")
    without = r"made.csv is an output of dvc.yaml that no dvc.lock has at .* Run `dvc repro`"
    with pytest.raises(UsageError, match=without):
        repository.resolve({"uri": "made.csv", "rev": "HEAD"})
    repository.dvc("repro", "-q", "project/dvc.yaml")
    repository.commit("made")
    repository.write("made.csv", b"a,b\n0,changed\n")
    assert repository.read({"uri": "made.csv", "rev": "HEAD"}).num_rows == 2


def test_a_repository_in_a_folder_of_a_larger_one_is_read_with_its_relative_remote(tmp_path: Path) -> None:
    """As `dvc init --subdir` makes it in a monorepo; the spec lies in a folder of its own."""
    repository = Repository(tmp_path / "mono/team/model", "spec")
    repository.cache = tmp_path / "digests"
    (tmp_path / "mono/README").write_text("of the whole\n")
    repository.git("init", "-q", str(tmp_path / "mono"))
    repository.git("add", "-A", str(tmp_path / "mono"))
    repository.git("commit", "-qm", "0")
    repository.dvc("init", "-q", "--subdir")
    repository.write_config("[core]\nremote = store\n['remote \"store\"']\nurl = ../../../../remote\n")
    repository.write("../data/t.csv", OLD)
    repository.dvc("add", "-q", "data")
    repository.commit("1")
    (repository.folder / ".dvc/cache").rename(tmp_path / "remote")  # as `dvc push` lays it out
    repository.write("../data/t.csv", NEW)  # what lies there now does not matter
    for uri in ("../data/t.csv", "../data/*.csv", str(repository.folder / "data/t.csv")):
        assert repository.read({"uri": uri, "rev": "HEAD"}).to_pylist() == [{"a": 1, "b": "x"}]
    assert [file.uri for file in repository.resolve({"uri": "../data/*", "rev": "HEAD"})] == ["data/t.csv"]
    with pytest.raises(UsageError, match=r"no file matches ../data/t.csv at HEAD~1 .*name a rev that has it"):
        repository.resolve({"uri": "../data/t.csv", "rev": "HEAD~1"})
    repository.root = tmp_path / "mono"
    outside = "is not in a DVC repository.* move the spec below the folder of `dvc init --sub"
    with pytest.raises(UsageError, match=outside):
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
