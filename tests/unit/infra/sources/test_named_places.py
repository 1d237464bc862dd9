"""A store that somebody else writes names the places of raw data: none of them is opened without the reader's word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import UsageError
from data_contracts.handoffs import Ref, SourceFile
from data_contracts.pipeline_spec import SourceSpec
from infra.sources.named_places import NO_PLACES, NamedPlaces, digests_now
from tasks.queries.proof import prove
from tests.support.files import git, write_files
from tests.support.signed import MODEL, SignedStore

MD5 = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A repository whose file is on S3 with a profile of its own, which runs a program: it writes `ran` beside."""
    folder = tmp_path / "trap"
    remote = f"url = s3://b/x\nendpointurl = http://127.0.0.1:9\nconfigpath = {folder / 'aws'}\n"
    files = {
        "program.sh": f"#!/bin/sh\nenv > {tmp_path / 'ran'}\n",
        "aws": f"[default]\ncredential_process = {folder}/program.sh\n",
        ".dvc/config": f"[core]\nremote = r\nno_scm = False\n['remote \"r\"']\n{remote}",
        "rows.csv.dvc": f"outs:\n- md5: {MD5}\n  size: 5\n  hash: md5\n  path: rows.csv\n",
    }
    write_files(folder, files)
    (folder / "program.sh").chmod(0o755)
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "a"], ["tag", "v1"]):
        git(folder, *arguments)
    return folder


class Forged(SignedStore):
    """A store whose contract report names this raw file, in this place."""

    raw: dict[str, Any]

    def _sealed(self, uri: str, kind: str, settings: dict[str, Any], about: dict[str, Any], **files: Any) -> Ref:
        return super()._sealed(uri, kind, settings, {**about, **(self.raw if kind == "contract" else {})}, **files)


def forged(folder: Path, source: dict[str, Any], root: Path, **file: Any) -> Forged:
    raw = {"uri": "rows.csv", "bytes": 5, "blake3": "b" * 64, "format": "csv", **file}
    Forged.raw = {"raw": [raw], "raw_sources": [source], "raw_root": str(root)}
    made = Forged(folder, None)
    made.promote(1)
    return made


def test_prove_opens_no_repository_that_only_the_store_names(
    trap: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = forged(tmp_path / "made", {"uri": "rows.csv", "rev": "v1"}, trap, rev="v1")
    assert prove(made.store, MODEL).unopened == ["rows.csv@v1"]
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match="Unable to locate credentials"):  # named by the reader, it runs nothing either
        prove(made.store, MODEL, places=NamedPlaces(trap))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("opened", "runs"),
    [
        ("from dvc.api import DVCFileSystem; DVCFileSystem(trap, rev='v1').open('rows.csv').read()", True),
        ("from infra.sources.places import DvcTracked; DvcTracked(Path(trap), 'v1').open('rows.csv')", False),
    ],
    ids=["plain DVC", "ours"],
)
def test_a_run_that_names_the_repository_itself_runs_no_program_of_its_configuration(
    opened: str, runs: bool, trap: Path, tmp_path: Path
) -> None:
    script = f"from pathlib import Path; trap = {str(trap)!r}; {opened}"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    subprocess.run([sys.executable, "-c", script], env={**environ, "HOME": str(tmp_path)}, check=False)
    assert (tmp_path / "ran").exists() == runs


S3 = {"uri": "s3://bucket/raw/*.csv", "storage_options": {"endpoint_url": "http://127.0.0.1:9"}}


def test_prove_sends_nothing_to_a_place_on_s3_that_only_the_store_names(tmp_path: Path) -> None:
    made = forged(tmp_path / "made", S3, tmp_path, uri="s3://bucket/raw/a.csv")
    assert prove(made.store, MODEL).unopened == ["s3://bucket/raw/a.csv"]
    assert prove(made.store, MODEL, places=NamedPlaces.of(["s3://bucket/ra"])).unopened
    with pytest.raises(UsageError, match="nobody on this machine has approved that profile:default may"):
        prove(made.store, MODEL, places=NamedPlaces.of(["s3://bucket/raw/"]))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"key": "env:TRAINWRIGHT_SIGNING_KEY"}, "the variable TRAINWRIGHT_SIGNING_KEY"),
        ({"client_kwargs": {"aws_session_token": "env:WANDB_API_KEY"}}, "the variable WANDB_API_KEY"),
        ({"key": "profile:work"}, "a profile"),
    ],
    ids=["key", "token", "profile"],
)
def test_no_other_secret_of_the_reader_is_sent_to_a_place_that_the_reader_names(
    options: dict[str, Any], named: str, tmp_path: Path
) -> None:
    made = forged(tmp_path / "made", {**S3, "storage_options": options}, tmp_path, uri="s3://bucket/raw/a.csv")
    with pytest.raises(UsageError, match=named):
        prove(made.store, MODEL, places=NamedPlaces.of(["s3://bucket"]))


def test_a_local_name_does_not_hide_a_place_on_s3_or_a_repository(tmp_path: Path) -> None:
    """What opens a place is its source, not the file's name."""
    file = SourceFile(uri=str(tmp_path / "a"), bytes=1, blake3="b" * 64, format="csv")
    for source in (SourceSpec(uri="s3://bucket/x"), SourceSpec(uri="a", rev="v1")):
        with pytest.raises(UsageError, match="only the store names"):
            digests_now([file], [source], tmp_path, NO_PLACES)


@pytest.mark.parametrize("data", [["s3://"], ["s3:///a"], ["s3:/bucket"], ["one", "two"]])
def test_places_that_name_nothing_are_refused(data: list[str]) -> None:
    with pytest.raises(UsageError, match="--data"):
        NamedPlaces.of(data)
