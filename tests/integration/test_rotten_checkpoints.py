"""Torn and rotten bytes of a checkpoint in a folder: none is accepted; a full disk is named and costs nothing else."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import CorruptError
from data_contracts.handoffs import Ref
from infra.store import Store, open_store
from tests.support.damage import flipped, overwrite
from tests.support.lost_writes import NEW, saved


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = open_store(str(tmp_path / "store"))
    saved(store, NEW, tmp_path)
    return store


@pytest.fixture
def sweep(tmp_path: Path, repository: Path) -> Callable[[str, int], dict[str, Any]]:
    """Carries one of the sweeps out in a process of its own."""

    def run(what: str, step: int) -> dict[str, Any]:
        command = [sys.executable, "-m", "tests.support.lost_writes", what, str(tmp_path / what), str(step)]
        environment = {**os.environ, "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, cwd=repository, capture_output=True, text=True, timeout=560)
        assert done.returncode == 0, done.stderr[-4000:]
        print(f"\n{what}: {done.stdout.strip()}")
        return json.loads(done.stdout)

    return run


def accepted(store: Store, ref: Ref) -> bool:
    """Whether a reader takes it: by what points to it, and by its place alone."""
    taken = 0
    for asked in (ref, ref.uri):
        try:
            store.verify(asked)
            taken += 1
        except (CorruptError, FileNotFoundError):
            continue
    return bool(taken)


@pytest.mark.parametrize("flips", [400, pytest.param(10_000, marks=pytest.mark.sweep)])
def test_no_flipped_bit_is_accepted(flips: int, store: Store) -> None:
    """Over all files, each as often as another, its manifest among them."""
    ref = store.manifest(NEW).ref
    files = sorted(Path(store.uri, NEW).iterdir())
    assert {"manifest.json", "weights-0.safetensors", "state.json", "rank-0.json"} <= {file.name for file in files}
    draw, taken = random.Random(flips), 0
    for number in range(flips):
        path = files[number % len(files)]
        bit = draw.randrange(path.stat().st_size * 8)
        whole = path.read_bytes()
        overwrite(path, flipped(whole, bit))
        taken += accepted(store, ref)
        overwrite(path, whole)
    assert accepted(store, ref), "every flip was taken back"
    print(f"\nbit flips: {taken} of {flips} accepted, over {len(files)} files")
    assert taken == 0


def test_no_file_is_accepted_shorter_longer_or_gone(store: Store) -> None:
    ref = store.manifest(NEW).ref
    for path in sorted(Path(store.uri, NEW).iterdir()):
        kept = path.read_bytes()
        torn = {0, 1, len(kept) // 2, len(kept) - 1, *range(0, len(kept), -(-len(kept) // 20))}
        for size in sorted(torn):
            overwrite(path, kept[:size])
            assert not accepted(store, ref), f"{path.name} cut to {size} bytes"
        for more in (b"\0", b"\n", kept):
            overwrite(path, kept + more)
            assert not accepted(store, ref), f"{path.name} with {len(more)} bytes more"
        path.unlink()
        assert not accepted(store, ref), f"{path.name} gone"
        path.write_bytes(kept)
    assert accepted(store, ref)


@pytest.mark.apt("strace")
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.sweep)], ids=["a sample", "all"])
def test_no_loss_of_power_leaves_what_is_taken_for_a_checkpoint(
    step: int, sweep: Callable[..., dict[str, Any]]
) -> None:
    """Each prefix of a save's calls, with what was not synced dropped: whole, or not there."""
    found = sweep("replay", step)
    assert found["states"] >= 50
    assert "broken" not in found
    assert found["none"] > found["whole"] > 0
    assert found["end"] == "whole" or step > 1


@pytest.mark.apt("strace")
@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.sweep)], ids=["a sample", "all"])
def test_a_full_disk_or_quota_is_named_and_the_older_checkpoint_stays(
    step: int, sweep: Callable[..., dict[str, Any]]
) -> None:
    found = sweep("full", step)
    assert found["calls"] >= 60
    assert found["fired"] == found["named"] == found["tried"]


@pytest.mark.parametrize("offsets", [30, pytest.param(200, marks=pytest.mark.sweep)])
def test_a_file_that_cannot_grow_is_named_wherever_it_ends(offsets: int, sweep: Callable[..., dict[str, Any]]) -> None:
    assert sweep("limit", offsets) == {"tried": offsets, "named": offsets}
