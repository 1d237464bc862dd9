"""The digits example whole against an S3 server, with credentials from the environment and with named ones."""

from __future__ import annotations

import contextlib
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import s3fs

from tests.support.approved import approve_here
from tests.support.digits import copy_digits
from tests.support.s3 import S3Server
from tests.support.tiny import answer, trainwright

pytestmark = pytest.mark.slow

STAGES = ["validate", "shard", "train", "verify", "evaluate", "promote"]
KEY, SECRET = "AKIAONLYINTHESETESTS", "wJalr-only-in-these-tests-bPxRf"


@dataclass
class Line:
    """A digits pipeline whose store is in a bucket.

    Attributes:
        said: all that its commands printed.
        first: the report of its first run.
        begun: when it was made, in seconds since the epoch.
        places: what lets `prove` open the raw data, which only the store names.
    """

    server: S3Server
    bucket: str
    spec: Path
    env: dict[str, str]
    named: list[str]
    said: list[str] = field(default_factory=list)
    first: dict[str, Any] = field(default_factory=dict)
    begun: float = field(default_factory=time.time)
    places: tuple[str, ...] = ()

    @property
    def store(self) -> str:
        return f"s3://{self.bucket}/team/digits"

    @property
    def objects(self) -> s3fs.S3FileSystem:
        """The bucket, past the store."""
        options = {"key": "any", "secret": "any", "endpoint_url": self.server.url, "use_listings_cache": False}
        return s3fs.S3FileSystem(**options, skip_instance_cache=True)

    def call(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        done = trainwright(*arguments, env=self.env)
        self.said += [done.stdout, done.stderr]
        return done

    def ask(self, *arguments: str) -> dict[str, Any]:
        """A command's answer about this store."""
        return answer(self.call(*arguments, "--store", self.store, "--json"))

    def run(self) -> dict[str, Any]:
        done = self.call("run", self.spec, *self.named, "--json")
        assert done.returncode == 0, done.stderr
        return answer(done)

    def flip(self, path: str, at: int = -1) -> bytes:
        """Change one bit of an object; its bytes before."""
        before = self.objects.cat_file(path)
        changed = bytearray(before)
        changed[at] ^= 1
        self.objects.pipe_file(path, bytes(changed))
        return before


@pytest.fixture(scope="module")
def by_environment(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Line:
    """`--store s3://…`, with endpoint and credentials as every AWS tool reads them."""
    env = {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": s3_server.url,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    spec = copy_digits(tmp_path_factory.mktemp("environment") / "digits")
    line = Line(s3_server, s3_server.bucket(), spec, env, [])
    line.named = ["--store", line.store]
    line.first = line.run()
    return line


@pytest.fixture(scope="module")
def by_name(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Line:
    """The spec names store, endpoint and credentials; the raw data is in a bucket too."""
    options = {"endpoint_url": s3_server.url, "key": "env:DIGITS_S3_KEY", "secret": "env:DIGITS_S3_SECRET"}
    approve_here(s3_server.url, "env:DIGITS_S3_KEY", "env:DIGITS_S3_SECRET")
    bucket, raw = s3_server.bucket(), s3_server.bucket()
    spec = copy_digits(
        tmp_path_factory.mktemp("named") / "digits",
        store={"uri": f"s3://{bucket}/team/digits", "storage_options": options},
        data={"source": {"uri": f"s3://{raw}/2026/digits*.parquet", "storage_options": options}},
    )
    line = Line(
        s3_server,
        bucket,
        spec,
        {
            "DIGITS_S3_KEY": KEY,
            "DIGITS_S3_SECRET": SECRET,
            "TRAINWRIGHT_PASS_ENV": "DIGITS_S3_KEY,DIGITS_S3_SECRET",
        },
        [],
    )
    data = spec.parent / "data"
    line.places = ("--data", f"s3://{raw}/2026/")
    line.objects.put_file(str(data / "digits.parquet"), f"{raw}/2026/digits.parquet")
    for path in data.iterdir():
        path.unlink()
    line.first = line.run()
    return line


@pytest.fixture(scope="module", params=["by_environment", "by_name"])
def line(request: pytest.FixtureRequest) -> Line:
    """Each of the two."""
    return request.getfixturevalue(request.param)


def statuses(report: dict[str, Any]) -> dict[str, str]:
    return {stage["name"]: stage["status"] for stage in report["stages"]}


def test_the_line_promotes_and_the_same_again_is_unchanged(line: Line) -> None:
    assert (line.first["verdict"], statuses(line.first)) == ("promoted", dict.fromkeys(STAGES, "ran"))
    assert line.first["model"] == {"name": "digits", "version": 1, "alias": "champion"}
    assert line.first["metrics"]["accuracy"] >= 0.95
    again = line.run()
    assert (again["verdict"], statuses(again)) == ("unchanged", dict.fromkeys(STAGES, "reused"))
    assert all(stage["reused_from"] for stage in again["stages"] if stage["name"] != "promote")
    assert (again["dataset_id"], again["checkpoint_id"]) == (line.first["dataset_id"], line.first["checkpoint_id"])


def test_status_show_and_prove_find_it_by_its_address(line: Line) -> None:
    [store] = line.ask("status")["stores"]
    assert store["models"] == [{"name": "digits", "alias": "champion", "version": 1}]
    assert {"run_id": line.first["run_id"], "pipeline": "digits", "verdict": "promoted"} in store["runs"]
    shown = answer(line.call("show", "digits@champion", "--store", f"{line.store}/", "--json"))
    assert shown["checkpoint"]["ref"]["id"] == line.first["checkpoint_id"]
    assert line.ask("show", line.first["run_id"]) == line.first
    proof = line.ask("prove", "digits@champion", *line.places)
    kinds = {link["kind"] for link in proof["links"]}
    assert kinds == {"model", "receipt", "checkpoint", "evaluation", "code", "recipe", "dataset", "contract"}
    assert (len(proof["raw_checked"]), proof["gone"]) == (1, [])
    # Without a word of the reader's, nothing is opened that only the store names.
    assert len(line.ask("prove", "digits@champion")["unopened"]) == bool(line.places)


def test_a_changed_byte_in_the_bucket_is_named_by_prove(by_environment: Line) -> None:
    line = by_environment
    proof = line.ask("prove", "digits@champion")
    for kind in ("dataset", "checkpoint"):
        uri = next(link["uri"] for link in proof["links"] if link["kind"] == kind)
        files = line.objects.find(f"{line.bucket}/team/digits/{uri}", detail=True)
        _refuses(line, max(files, key=lambda name: files[name]["size"]))


def test_a_changed_raw_object_exits_6_and_a_missing_one_is_listed(by_name: Line) -> None:
    line = by_name
    [file] = line.ask("prove", "digits@champion", *line.places)["raw_checked"]
    raw = file.removeprefix("s3://")
    _refuses(line, raw)
    kept = line.objects.cat_file(raw)
    line.objects.rm_file(raw)
    try:
        gone = line.ask("prove", "digits@champion", *line.places)["gone"]
    finally:
        line.objects.pipe_file(raw, kept)
    assert gone == [file]


def _refuses(line: Line, path: str) -> None:
    before = line.flip(path)
    try:
        done = line.call("prove", "digits@champion", "--store", line.store, *line.places)
    finally:
        line.objects.pipe_file(path, before)
    assert done.returncode == 6, (path, done.stderr)
    assert path.rpartition("/")[2] in done.stderr, (path, done.stderr)


def test_the_same_dataset_and_weights_come_out_in_a_folder(by_environment: Line, tmp_path: Path) -> None:
    line = by_environment
    options = ("--store", tmp_path / "store", "--set", "tags.team=others", "--json")
    for verb, made in (("validate", None), ("shard", "dataset_id"), ("train", "checkpoint_id")):
        done = line.call(verb, line.spec, *options)
        assert done.returncode == 0, done.stderr
        assert made is None or answer(done)["handoff"]["ref"]["id"] == line.first[made]


def test_no_credential_is_written_anywhere(line: Line, state_folder: Path) -> None:
    looked = [(f"printed {number}", text.encode()) for number, text in enumerate(line.said)]
    looked += line.objects.cat(line.objects.find(line.bucket)).items()
    for path in (path for folder in (state_folder, line.spec.parent) for path in folder.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # the server's own, which come and go
            if path.is_file() and path.stat().st_mtime > line.begun - 2:
                looked.append((str(path), path.read_bytes()))
    assert any(line.first["run_id"] in name for name, _ in looked)
    found = [name for name, data in looked for secret in (KEY, SECRET) if secret.encode() in data]
    assert found == []
