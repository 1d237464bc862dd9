"""The second example in its short form: bytes as tokens by the user's transform, TFRecord, FSDP on two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny import answer, trainwright


@pytest.mark.slow
def test_the_short_form_is_promoted(tmp_path: Path, repository: Path) -> None:
    example = repository / "examples" / "stdlib_gpt"
    short = (example / "short.args").read_text().split()
    done = trainwright("run", example / "pipeline.yaml", *short, "--store", tmp_path / "store", "--json", timeout_s=600)
    assert done.returncode == 0, done.stderr
    report = answer(done)
    assert report["verdict"] == "promoted"
    # Eight bits would be no model at all; after 80 steps it has learnt which bytes there are.
    assert report["metrics"]["bits_per_byte"] < 6
    [dataset] = (tmp_path / "store" / "datasets").iterdir()
    assert list(dataset.glob("train-*.tfrecord"))
