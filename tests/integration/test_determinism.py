"""One spec in empty stores gives the same dataset and, with DDP on two ranks, the same weights, bit for bit.

Whatever may differ, does: folder, state folder (so no cache helps), tags, and the day.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data_contracts.handoffs import Checkpoint
from infra.store import Manifest, Store, open_store
from tests.support.digits import copy_digits
from tests.support.tiny import answer, trainwright

pytestmark = pytest.mark.warm

LATER_S = 40 * 24 * 3600


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Store]:
    """The report of a run, and its store."""
    spec = copy_digits(tmp_path_factory.mktemp("first") / "digits", tags={"team": "first"})
    done = trainwright("run", spec, "--json")
    assert done.returncode == 0, done.stderr
    return answer(done), open_store(str(spec.parent / ".trainwright"), create=False)


@pytest.mark.apt("faketime")
def test_other_tags_other_folders_and_another_day_change_nothing(
    first: tuple[dict[str, Any], Store], tmp_path: Path
) -> None:
    report, _ = first
    dataset, checkpoint = again = _made_again(tmp_path, {"team": "second", "cost-centre": "7"})
    _same(first, again)
    assert dataset.provenance["tags"] == checkpoint.provenance["tags"] == {"team": "second", "cost-centre": "7"}
    assert all(part.provenance["finished"][:10] > report["finished"][:10] for part in again)


def _made_again(folder: Path, tags: dict[str, str]) -> tuple[Manifest, Manifest]:
    """The sealed dataset and checkpoint of the same spec, made anew in `folder` on a later day."""
    spec = copy_digits(folder / "elsewhere" / "of-mine", tags=tags)
    later = ["faketime", "-f", f"+{LATER_S}"]
    for verb in ("validate", "shard", "train"):
        done = subprocess.run(
            [*later, sys.executable, "-m", "flows.cli", verb, str(spec), "--out", str(folder / f"{verb}.json")],
            env={
                **os.environ,
                "PYTHONPATH": str(Path(__file__).parents[2]),
                "TRAINWRIGHT_HOME": str(folder / "home"),
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "reused" not in done.stdout
    store = open_store(str(spec.parent / ".trainwright"), create=False)
    made = [json.loads((folder / f"{verb}.json").read_text())["ref"]["uri"] for verb in ("shard", "train")]
    return store.verify(made[0]), store.verify(made[1])


def _same(first: tuple[dict[str, Any], Store], again: tuple[Manifest, Manifest]) -> None:
    report, store = first
    [training] = store.list("trainings")
    result = Checkpoint.from_json(store.read_json(f"trainings/{training}/result.json"))
    assert result.world_size == 2
    dataset, checkpoint = again
    assert dataset.id == report["dataset_id"]
    assert _weights(checkpoint) == _weights(store.verify(result.ref))
    # The rest of the checkpoint too: optimizer, generators, history.
    assert checkpoint.id == report["checkpoint_id"] == result.ref.id


def _weights(checkpoint: Manifest) -> dict[str, str]:
    """Digest of each file of weights."""
    found = {file.path: file.blake3 for file in checkpoint.files if file.path.startswith("weights-")}
    assert found
    return found
