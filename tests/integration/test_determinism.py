"""One spec in empty stores gives the same dataset and, with DDP on two ranks, the same weights, bit for bit.

Whatever may differ, does: folder, state folder (so no cache helps), tags, and the day.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from data_contracts.handoffs import Checkpoint
from infra.store import Manifest, open_store
from tests.support.digits import copy_digits

pytestmark = pytest.mark.warm

LATER = ("faketime", "-f", f"+{40 * 24 * 3600}")


def made(project: Path, tags: dict[str, str], *wrapper: str) -> tuple[Manifest, Manifest]:
    """The sealed dataset and checkpoint of the digits, made in this folder by commands in a wrapper."""
    spec, root = copy_digits(project, tags=tags), Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "TRAINWRIGHT_HOME": str(project.parent / "home")}
    handoffs = {}
    for verb in ("validate", "shard", "train"):
        out = project.parent / f"{verb}.json"
        words = [*wrapper, sys.executable, "-m", "flows.cli", verb, str(spec), "--out", str(out)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        assert "reused" not in done.stdout
        handoffs[verb] = json.loads(out.read_text())
    assert Checkpoint.from_json(handoffs["train"]).world_size == 2
    store = open_store(str(project / ".trainwright"), create=False)
    return store.verify(handoffs["shard"]["ref"]["uri"]), store.verify(handoffs["train"]["ref"]["uri"])


def weights(checkpoint: Manifest) -> dict[str, str]:
    """Digest of each file of weights."""
    return {file.path: file.blake3 for file in checkpoint.files if file.path.startswith("weights-")}


@pytest.mark.slow
@pytest.mark.apt("faketime")
def test_other_tags_other_folders_and_another_day_change_nothing(tmp_path: Path) -> None:
    first = made(tmp_path / "first/digits", {"team": "first"})
    tags = {"team": "second", "cost-centre": "7"}
    again = made(tmp_path / "elsewhere/of-mine", tags, *LATER)
    # The ids are also of the rest of the checkpoint: optimizer, generators, history.
    assert [part.id for part in again] == [part.id for part in first]
    assert weights(again[1]) == weights(first[1]) != {}
    for before, after in zip(first, again, strict=True):
        assert after.provenance["tags"] == tags
        assert after.provenance["finished"][:10] > before.provenance["finished"][:10]
