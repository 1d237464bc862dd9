"""Real ranks that diverge, run out of memory or drift apart: what each answers, and which rows are trained on after."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_contracts.errors import Hung
from data_contracts.handoffs import Checkpoint
from data_contracts.messages.gang import Launch
from data_contracts.pipeline_spec import LoaderSpec, RetrySpec
from infra.code_bundle import pack
from infra.gang.conductor import TrainingRequest, conduct
from infra.gang.members import Progress
from infra.gang.node import LocalNodes
from infra.store import Store, open_store
from tests.distributed.conftest import PROJECT
from tests.support.gang import TRAINING, Gang, answer, seal_dataset
from tests.support.scripted_nodes import Launching
from training.order import epoch_order

pytestmark = pytest.mark.warm

BATCH, STEPS = 16, 6  # rows of a step, steps of an epoch of 100 rows


def order(dataset_id: str = "d" * 64) -> list[int]:
    """The rows of three epochs in the order of training, as everything else is told to have it."""
    epochs = (epoch_order(LoaderSpec(), [50, 50], dataset_id, 3, epoch)(np.arange(BATCH * STEPS)) for epoch in range(3))
    return [int(row) for rows in epochs for row in rows]


def ledger(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEDGER", str(tmp_path / "ledger"))
    return tmp_path / "ledger"


def test_what_diverged_is_passed_over_and_everything_else_trained_on_once(
    gang: Callable[..., Gang], told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poison stands in the sixth step; the fourth has a checkpoint."""
    whole = order()
    monkeypatch.setenv("POISON", str(whole[5 * BATCH + 7]))
    run = gang("run", "Ledger", batch=["x", "y", "id"], checkpoint={"every_steps": 4})
    scratch = run.run()
    errors = [answer(scratch, rank, "error") for rank in (0, 1)]
    assert [error["cause"] for error in errors] == ["diverged", "diverged"], run.log()[-4000:]
    # The fifth may have caused it, too, by the weights that it left behind.
    since, until = errors[0]["details"]["samples"]
    assert (since, until) == (4 * BATCH, 6 * BATCH)
    assert errors[0]["details"]["rows"] == whole[since:until]
    assert str(whole[since:until])[1:-1] in run.log(), "all of them are in the log"
    committed = answer(scratch, 0)["checkpoints"]
    told.unlink()
    monkeypatch.delenv("POISON")
    run.told = {"skip": [[since, until]]}
    assert [one["step"] for one in committed] == [4]
    end = run.train_to_end(1, committed[0])
    wanted = [row for sample, row in enumerate(whole) if sample >= 4 * BATCH and not since <= sample < until]
    assert Counter(row for line in ledger(told) for row in line["rows"]) == Counter(wanted)
    assert end["skipped"] == [[since, until]]
    assert end["step"] == 3 * STEPS - (until - since) // BATCH, "what is passed over is no step"
    assert run.store.manifest(end["ref"]["uri"]).settings["skipped"] == [[since, until]]
    assert run.store.manifest(end["ref"]["uri"]).settings["samples"] == 3 * STEPS * BATCH


# How the work is shared; whom the comparison names: of two replicas nobody knows which is right (see test_ends.py).
DRIFTS = [
    pytest.param(
        3,
        {"strategy": "ddp", "global_batch_size": 15},
        "the parameters of rank 1 are no longer those of the other ranks",
        id="ddp-3",
    ),
    pytest.param(
        4,
        {"strategy": "hsdp", "shard_ranks": 2, "shard_modules": ["Linear"]},
        "ranks 1, 3 no longer hold the same parameters",
        id="hsdp-4",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "train", "named"), DRIFTS)
def test_one_of_several_replicas_that_drifts_is_named_before_the_next_checkpoint(
    ranks: int, train: dict[str, Any], named: str, gang: Callable[..., Gang]
) -> None:
    run = gang("run", "Drifts", ranks=ranks, checkpoint={"every_steps": 4}, **train)
    scratch = run.run()
    errors = [answer(scratch, rank, "error") for rank in range(ranks)]
    assert [error["cause"] for error in errors] == ["corrupt"] * ranks, run.log()[-4000:]
    assert errors[0]["message"] == f"At step 8 {named}."
    assert [one["step"] for one in answer(scratch, 0)["checkpoints"]] == [4]


class Conducted:
    """A training of real ranks under a conductor."""

    def __init__(self, folder: Path, dataset: tuple[Path, dict[str, Any]], **train: Any) -> None:
        self.store: Store = open_store(str(folder / "store"))
        self.dataset = seal_dataset(self.store, dataset)
        self.train = {
            "lightning": {
                "model": {"class_path": "nets.Ledger"},
                "trainer": {"accelerator": "cpu", "max_epochs": 3, "log_every_n_steps": 1, "barebones": False},
            },
            "global_batch_size": BATCH,
            "batch": ["x", "y", "id"],
            "seed": 3,
            "checkpoint": {"every_steps": 4},
            **train,
        }
        self.seen: list[Progress] = []

    def run(self, *, on_progress: Callable[[Progress], None] = lambda progress: None, **options: Any) -> Checkpoint:
        def note(progress: Progress) -> None:
            self.seen.append(progress)
            on_progress(progress)

        bundle = pack(PROJECT, self.store)
        train = {"devices": options.get("devices", 1), **self.train}
        size = {name: options.pop(name) for name in ("nodes", "devices", "min_nodes", "hang_s") if name in options}
        launch = Launch(
            training=TRAINING,
            train=train,
            dataset=self.dataset,
            code=bundle.ref,
            sealed={"train": self.train, "code_digest": bundle.digest, "dataset_id": None},
            heartbeat_s=0.2,
            **{"devices": 1, **size},
        )
        request = TrainingRequest(
            launch=launch,
            holder="test",
            retry=RetrySpec(**options.pop("retry", {})),
            keep=2,
            select=None,
            rollcall_timeout_s=60,
            on_progress=note,
            **options,
        )
        return conduct(self.store, request).checkpoint

    @property
    def ended(self) -> list[str]:
        return [progress.sentence for progress in self.seen if progress.phase == "ended"]


def kept(path: Path, begun: list[int]) -> Counter[int]:
    """How often each row was trained on in steps that were kept: those of a generation before the next one's first.

    Args:
        begun: the step from which each generation went on.
    """
    lines = [line for line in ledger(path) if line["step"] < [*begun, 10**9][line["g"] + 1]]
    return Counter(row for line in lines for row in line["rows"])


def test_out_of_memory_is_survived_with_half_the_micro_batch(
    tmp_path: Path, dataset: tuple[Path, dict[str, Any]], told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOST", "4")
    training = Conducted(tmp_path, dataset)
    end = training.run(nodes=1, devices=2)
    assert end.step == 3 * STEPS
    assert len(training.ended) == 1
    assert "Out of memory: micro-batches of 4 rows instead of 8, same global batch." in training.ended[0]
    lines = ledger(told)
    assert {len(line["rows"]) for line in lines} == {4}
    assert Counter(row for line in lines for row in line["rows"]) == Counter(order(training.dataset.ref.id))


def uneven(tmp_path: Path, dataset: tuple[Path, dict[str, Any]], epochs: int) -> Conducted:
    trainer = {"accelerator": "cpu", "max_epochs": epochs, "log_every_n_steps": 1}
    lightning = {"model": {"class_path": "nets.Uneven"}, "trainer": trainer}
    return Conducted(tmp_path, dataset, lightning=lightning, batch=["x", "y"], strategy="ddp")


def test_a_rank_that_stands_still_while_the_others_wait_for_it_is_named(
    tmp_path: Path, dataset: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 in the user's step, rank 0 in the all-reduce of its gradients."""
    monkeypatch.setenv("RANK_THAT", "1")
    monkeypatch.setenv("STANDS", "5")
    with pytest.raises(Hung) as caught:
        uneven(tmp_path, dataset, 3).run(nodes=2, hang_s=5, retry={"hung": 0})
    host = socket.gethostname()
    assert caught.value.message.startswith(
        f"Rank 1 on node 1 ({host}) stands still (forward) at step 5 and has made no progress"
    )
    assert (caught.value.details["rank"], caught.value.details["node"]) == (1, 1)
    stacks = caught.value.details["stacks"]
    assert "nets.py" in stacks["1"]
    assert "in training_step" in stacks["1"]
    assert "backward" in stacks["0"]
    assert "nets.py" not in stacks["0"]


@pytest.mark.slow
def test_a_rank_that_is_ten_times_slower_is_named_and_left_alone(
    tmp_path: Path, dataset: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK_THAT", "1")
    monkeypatch.setenv("SLOW", "0.15")
    training = uneven(tmp_path, dataset, 6)
    end = training.run(nodes=2)
    assert (end.step, end.generation) == (6 * STEPS, 0)
    (said,) = {progress.sentence for progress in training.seen if "straggler" in progress.sentence}
    assert said.startswith(f"rank 1 on node 1 ({socket.gethostname()}) is a straggler: its own work takes 0.1")


@pytest.mark.slow
def test_a_gang_that_shrinks_and_grows_again_sees_each_row_once(
    tmp_path: Path, dataset: tuple[Path, dict[str, Any]], told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four nodes, then two (SIGKILL), then four again (SIGTERM to one rank)."""
    monkeypatch.setenv("PACE", "0.1")
    monkeypatch.setattr("infra.gang.conductor.REGATHER_S", 5.0)
    training = Conducted(tmp_path, dataset)
    nodes: dict[tuple[int, int], Any] = {}

    class Some(LocalNodes):
        def start(self, numbers: Collection[int]) -> None:
            super().start([node for node in numbers if self.launch.generation != 1 or node not in (0, 2)])
            nodes.update({(self.launch.generation, number): node for number, node in self.nodes.items()})

    done: set[int] = set()

    def disturb(progress: Progress) -> None:
        if progress.generation == 0 and progress.checkpoint_step >= 4 and 0 not in done:
            done.add(0)
            os.kill(nodes[0, 2]._process.pid, signal.SIGKILL)
        if progress.generation == 1 and progress.step >= 10 and 1 not in done:
            done.add(1)
            pid = json.loads(next(Path(nodes[1, 3]._folder.path).rglob("pid-1.json")).read_text())["pid"]
            os.kill(pid, signal.SIGTERM)

    end = training.run(nodes=4, min_nodes=2, launcher=Launching(Some), on_progress=disturb)
    assert (end.step, end.world_size, end.generation) == (3 * STEPS, 4, 2)
    assert training.ended[0].startswith("generation 0 ended (node_lost)")
    assert training.ended[1].startswith("generation 1 ended (preempted)")
    resumed = [training.store.read_json(f"{TRAINING}/g{number}/launch.json")["resume"] for number in range(3)]
    assert kept(told, [one["step"] if one else 0 for one in resumed]) == Counter(order(training.dataset.ref.id))
    ranks = {number: {line["rank"] for line in ledger(told) if line["g"] == number} for number in range(3)}
    assert ranks == {0: {0, 1, 2, 3}, 1: {0, 1}, 2: {0, 1, 2, 3}}
