"""A model whose raw data and store are on S3, which began with another model and mixes its data, is made again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import s3fs

from flows.cli import main
from infra.store import open_store
from tasks.run.resolve import find_version
from tests.support.s3 import S3Server
from tests.support.tiny import SPEC, answer, trainwright, write_project, write_rows

# Two lines, each made twice.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

# The sources name these variables, which a store could name as well.
PASSED = {"TRAINWRIGHT_PASS_ENV": "TRAINWRIGHT_TEST_S3_*"}
ENV = {**PASSED, "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))


def carry_out(spec: Path, *stages: str) -> None:
    for stage in stages:
        assert main([stage, str(spec)]) == 0, stage


def test_it_is_equal_to_the_bit(s3_server: S3Server, tmp_path: Path) -> None:
    raw, kept = s3_server.bucket(), s3_server.bucket()
    objects = s3fs.S3FileSystem(key="any", secret="any", endpoint_url=s3_server.url, skip_instance_cache=True)

    def put(name: str, seed: int) -> None:
        write_rows(tmp_path / "rows.csv", 300, seed)
        objects.put_file(str(tmp_path / "rows.csv"), f"{raw}/{name}")

    def project(name: str, rows: str, **train: Any) -> Path:
        lightning = {**SPEC["train"]["lightning"], "trainer": {"max_epochs": 1}}
        spec = write_project(
            tmp_path / name,
            {
                "name": name,
                "store": {"uri": f"s3://{kept}/team", "storage_options": s3_server.options},
                "data": {"source": {"uri": f"s3://{raw}/{rows}", "storage_options": s3_server.options}},
                "shards": {"split": {"key": "id"}, "append": True},
                "train": {**SPEC["train"], "lightning": lightning, **train},
                "promote": {"gates": []},
            },
        )
        (spec.parent / "rows.csv").unlink()
        return spec

    base = project("base", "base-*.csv")
    put("base-1.csv", 1)
    carry_out(base, "validate", "shard")
    put("base-2.csv", 2)  # the dataset of this model has a parent, which holds a part of its shards
    carry_out(base, "validate", "shard", "train", "verify", "evaluate", "promote")
    put("tiny.csv", 3)
    store = open_store(f"s3://{kept}/team", s3_server.options, create=False)
    mixed = store.manifest(find_version(store, "base")[0].checkpoint.ref).parent_in("datasets")
    mixture = {"datasets": {"base": mixed.uri}, "weights": {"this": 0.5, "base": 0.5}}
    tiny = project("tiny", "tiny.csv", init_from="base@champion", loader={"mixture": mixture})
    carry_out(tiny, "validate", "shard", "train", "verify", "evaluate", "promote")
    shutil.rmtree(tmp_path / "home")  # no copy of what is on S3
    for name in ("tiny", "base"):
        done = trainwright(
            "reproduce", name, "--store", f"s3://{kept}/team", "--into", tmp_path / f"{name}-again", "--here", "--json",
            "--data", f"s3://{raw}",
            env={**ENV, "AWS_ENDPOINT_URL": s3_server.url, "TRAINWRIGHT_PASS_ENV": "TEST_S3_KEY,TEST_S3_SECRET"},
            timeout_s=1200,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        told = answer(done)
        assert told["equal"], told
        assert {row["what"] for row in told["rows"]} >= {"contract report", "dataset", "evaluation"}
        assert any("training began with" in note for note in told["notes"]) is (name == "tiny")
