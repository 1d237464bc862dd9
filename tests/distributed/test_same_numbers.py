"""One process, DDP, FSDP and HSDP give the same losses; and the same ones as ever.

What is compared is the loss of each global batch over 50 steps, in which it falls from 0.65 to 0.03. Between two ways
of sharing the work only the order of additions differs, so step 1 agrees to the last bits and later steps drift apart
by as much as is stated with each case. The golden losses in `tests/golden/losses` are compared exactly where their
first line is true: with the same torch, the same vector instructions and the same processor (its libraries choose
their kernels by that), each rank with one thread. Elsewhere they hold within the same tolerance. `WRITE_GOLDEN=1`
writes them anew.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.gang import Gang, answer, make_dataset, train_together

pytestmark = pytest.mark.timeout(1800)
STEPS = 50
GOLDEN = Path(__file__).parents[1] / "golden" / "losses"
PROJECT = Path(__file__).parent / "project"
STEP_1 = 1e-6
# Case -> settings, and the difference that is allowed at each of the 50 steps.
CASES: dict[str, tuple[dict[str, Any], float]] = {
    "plain": ({}, 1e-5),
    "bf16": ({"trainer": {"precision": "bf16-mixed"}}, 0.03),
    "accumulated": ({"micro_batch_size": 4}, 1e-5),
    "clipped": ({"trainer": {"gradient_clip_val": 0.1}}, 1e-5),
}
WAYS = {
    "single-1": {"strategy": "single"},
    "ddp-2": {"strategy": "ddp"},
    "fsdp-2": {"strategy": "fsdp", "shard_modules": ["Block"]},
    "ddp-4": {"strategy": "ddp"},
    "fsdp-4": {"strategy": "fsdp", "shard_modules": ["Block"]},
    "hsdp-4": {"strategy": "hsdp", "shard_ranks": 2, "shard_modules": ["Block"]},
}
SHARED = [pytest.param(way, marks=[pytest.mark.slow] if way.endswith("4") else []) for way in list(WAYS)[1:]]
Losses = Callable[[str], dict[str, list[float]]]


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> Losses:
    """For a way of sharing the work: the losses of each case. All of as many ranks are trained at once."""
    folder = tmp_path_factory.mktemp("losses")
    told = make_dataset(folder / "rows", {"train": 100})

    def make(way: str, case: str, settings: dict[str, Any]) -> Gang:
        ranks = int(way[-1])
        train = {
            "lightning": {
                "model": {"class_path": "nets.Numbers", "init_args": {}},
                "trainer": {
                    "accelerator": "cpu", "max_epochs": -1, "max_steps": STEPS, "log_every_n_steps": 1,
                    **settings.get("trainer", {}),
                },
            },
            "global_batch_size": 16, "micro_batch_size": settings.get("micro_batch_size"),
            "batch": ["x", "y"], "seed": 3, "collective_timeout_s": 60, "checkpoint": {"every_steps": 10**6},
            **WAYS[way],
        }  # fmt: skip
        return Gang(folder / way / case, train, PROJECT, told, folder / "rows", ranks, told={"heartbeat_s": 1.0})

    @functools.cache
    def of_ranks(ranks: str) -> dict[str, dict[str, list[float]]]:
        made = {(way, case): make(way, case, CASES[case][0]) for way in WAYS if way[-1] == ranks for case in cases(way)}
        train_together(list(made.values()))
        found: dict[str, dict[str, list[float]]] = {}
        for (way, case), gang in made.items():
            found.setdefault(way, {})[case] = logged(gang)
        return found

    return lambda way: of_ranks(way[-1])[way]


def cases(way: str) -> dict[str, tuple[dict[str, Any], float]]:
    """The cases of a way; on four ranks those that a mesh of two dimensions could get wrong."""
    return {case: CASES[case] for case in CASES if not way.endswith("4") or case in ("plain", "clipped")}


def logged(gang: Gang) -> list[float]:
    """The loss at each step."""
    end = gang.end()
    plan = answer(gang.scratch(0), 0, "done")["plan"]
    assert plan["accumulate"] * plan["micro_batch"] * gang.ranks == 16
    folder = gang.checkpoint_folder(end)
    # One replica is stored, by the ranks that hold it.
    holders = {"fsdp": gang.ranks, "hsdp": 2}.get(gang.train["strategy"], 1)
    assert len(list(folder.glob("weights-*"))) == holders
    records = json.loads((folder / "history.json").read_text())
    by_step = {record["step"]: record["loss"] for record in records if "loss" in record}
    assert list(by_step) == list(range(STEPS))
    return list(by_step.values())


@pytest.mark.parametrize("way", SHARED)
def test_every_way_of_sharing_the_work_gives_the_losses_of_one_process(way: str, losses: Losses) -> None:
    alone, shared = losses("single-1"), losses(way)
    for case, (_, tolerance) in cases(way).items():
        assert shared[case][0] == pytest.approx(alone[case][0], abs=STEP_1), case
        assert shared[case] == pytest.approx(alone[case], abs=tolerance), case
        assert shared[case][-1] < shared[case][0] / 2, f"{case}: nothing was learned"


def test_each_setting_has_the_effect_that_it_should(losses: Losses) -> None:
    alone = losses("single-1")
    # Four micro-batches have the gradient of the whole.
    assert alone["accumulated"] == pytest.approx(alone["plain"], abs=CASES["accumulated"][1])
    for case in ("bf16", "clipped"):
        assert alone[case] != pytest.approx(alone["plain"], abs=0.01), case


@pytest.mark.parametrize("way", ["single-1", *SHARED])
def test_the_losses_are_the_golden_ones(way: str, losses: Losses) -> None:
    path, here = GOLDEN / f"{way}.txt", circumstances()
    mine, names = losses(way), f"# step {' '.join(cases(way))}"
    found = [[f"{mine[case][step]:.9g}" for case in cases(way)] for step in range(STEPS)]
    if os.environ.get("WRITE_GOLDEN"):
        lines = [
            f"# {here}",
            names,
            *(f"{at + 1} {' '.join(row)}" for at, row in enumerate(found)),
        ]
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    where, told, *rows = path.read_text().splitlines()
    assert told == names
    golden = [row.split()[1:] for row in rows]
    if where == f"# {here}":
        assert found == golden
    for at, (case, (_, tolerance)) in enumerate(cases(way).items()):
        expected = [float(row[at]) for row in golden]
        assert mine[case] == pytest.approx(expected, abs=tolerance), case


def circumstances() -> str:
    """What the last bits depend on."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    [model] = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")][:1] or ["unknown"]
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {model}, one thread"
