"""How a training can end other than well: what each rank answers, with which exit code, what is left in the store.

Where all ranks end a training by themselves, two ranks carry out such trainings one after another.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import from_json
from tests.distributed.conftest import Make
from tests.support.gang import TIMEOUT_S, TRAINING, Gang, answer, make_dataset, train_together


def ends(run: Gang, generation: int = 0) -> Path:
    """Run a gang that must fail and return its scratch folder."""
    scratch = run.run(generation)
    assert answer(scratch, 0, "done") is None
    return scratch


def exit_codes(scratch: Path) -> set[int]:
    """The exit codes that torchrun saw."""
    lines = (scratch / "log.txt").read_text().splitlines()
    return {int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("exitcode")}


def when(condition: Callable[[], Any]) -> Any:
    """The value of `condition` as soon as it is true."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (value := condition()):
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.02)
    return value


@pytest.mark.parametrize("how", [pytest.param("stop file", marks=pytest.mark.slow), "SIGTERM to rank 1"])
def test_a_stop_leaves_one_checkpoint_of_the_same_step_on_all_ranks(how: str, gang: Make) -> None:
    run = gang("run", trainer={"max_epochs": 100_000}, checkpoint={"every_steps": 1_000_000})
    process = run.start()
    scratch = run.scratch(0)
    try:
        when(lambda: (answer(scratch, 1) or {}).get("step", 0) >= 2)
        if how == "stop file":
            (scratch / "stop").touch()
        else:
            os.kill(json.loads((scratch / "pid-1.json").read_text())["pid"], signal.SIGTERM)
        process.wait(timeout=TIMEOUT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    errors = [answer(scratch, rank, "error") for rank in (0, 1)]
    assert [error["cause"] for error in errors] == ["preempted", "preempted"], errors
    assert exit_codes(scratch) == {5}
    [checkpoint] = answer(scratch, 0)["checkpoints"]
    assert run.store.list(f"{TRAINING}/checkpoints") == [f"{checkpoint['step']}-g0"]
    run.checkpoint_folder(checkpoint)
    assert run.store.manifest(checkpoint["ref"]["uri"]).settings["samples"] == 16 * checkpoint["step"]


def test_an_exception_in_step_3_is_the_users_and_shows_the_users_frames_alone(gang: Make) -> None:
    scratch = ends(gang("run", "Raises"))
    error = answer(scratch, 0, "error")
    assert error["cause"] == "user_code"
    assert error["message"] == "The user's code raised RuntimeError: the third step is too much."
    frames = [line.strip() for line in error["user_traceback"].splitlines() if line.strip().startswith("File")]
    assert [frame.split(", in ")[1] for frame in frames] == ["training_step", "helper"]
    assert all("nets.py" in frame for frame in frames)
    assert error["user_traceback"].endswith("RuntimeError: the third step is too much")
    assert 8 in exit_codes(scratch)
    assert answer(scratch, 0)["step"] == 2


@pytest.mark.slow
def test_the_rank_that_raised_is_first_and_the_others_name_the_connection(gang: Make) -> None:
    scratch = ends(gang("run", "RaisesOnOneRank", collective_timeout_s=30))
    assert from_json(answer(scratch, 1, "error")).message == "The user's code raised RuntimeError: rank one alone."
    other = answer(scratch, 0, "error")
    if other is not None:  # torchrun may have ended it before it noticed
        assert other["cause"] == "node_lost", other
        times = [(scratch / f"rank-{rank}.error.json").stat().st_mtime_ns for rank in (0, 1)]
        assert times[1] < times[0]


DIVERGED = ("TurnsNan", "NanGradient")
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "state that no checkpoint holds": (
        {"model": "Unsavable"},
        "usage",
        "handle/of/1 is a object, which a checkpoint cannot hold: it takes tensors and plain values.",
    ),
    "state that no checkpoint holds, made by a hook": (
        {"model": "UnsavableLate"},
        "usage",
        "handle is a object, which a checkpoint cannot hold: it takes tensors and plain values.",
    ),
    "no such class": (
        {"model": "Nowhere"},
        "usage",
        "train.lightning: model.class_path: nets.Nowhere was not found: module nets has no Nowhere.",
    ),
    "no such module to shard": (
        {"strategy": "fsdp", "shard_modules": ["Blok"]},
        "usage",
        "train.shard_modules: the module has no Blok.",
    ),
    "an optimizer's argument": (
        {"lightning": {"optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": -1.0}}}},
        "user_code",
        "torch raised ValueError: Invalid learning rate: -1.0.",
    ),
    "an interval beyond the epoch": (
        {"trainer": {"val_check_interval": 1000}},
        "usage",
        "train.lightning: ValueError: `val_check_interval` (1000) must be less than or equal to the number of the "
        "training batches (6). If you want to disable validation set `limit_val_batches` to 0.0 instead. If you want "
        "to validate based on the total training batches, set `check_val_every_n_epoch=None`.",
    ),
    "no step at all": (
        {"trainer": {"max_epochs": 0}},
        "usage",
        "train.lightning: the training ended without a single step.",
    ),
    "inputs that are in doubt": (
        {"model": "Doubtful"},
        "usage",
        "train.batch: forward takes first, second, and it is in doubt",
    ),
    "no such column": ({"batch": ["x", "z"]}, "usage", "The dataset has no column 'z'; it has id, x, a, b, y."),
}


@pytest.fixture(scope="module")
def ended(shared_gang: Make, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Gang]:
    """Each of REFUSED and DIVERGED, one with rows that hold no number, one whose replicas drift apart, and one that
    cannot save its second checkpoint."""
    gangs = {case: shared_gang(case, **settings) for case, (settings, _, _) in REFUSED.items()}
    gangs["inputs that are in doubt"].told = {"targets": ["y"]}
    gangs |= {model: shared_gang(model, model, checkpoint={"every_steps": 1}) for model in DIVERGED}
    folder = tmp_path_factory.mktemp("holes") / "rows"
    holes = gangs["rows without numbers"] = shared_gang("holes", "Plain")
    holes.dataset, holes.dataset_folder = make_dataset(folder, {"train": 100, "val": 21}, holes=99), folder
    gangs["drifts"] = shared_gang("drifts", "Drifts", checkpoint={"every_steps": 4})
    unsaved = gangs["cannot be saved"] = shared_gang("unsaved", checkpoint={"every_steps": 4})
    unsaved.store.create(f"{TRAINING}/checkpoints/8-g0/weights-0.safetensors", b"in its place")
    train_together(list(gangs.values()))
    return gangs


def errors_of(run: Gang) -> list[dict[str, Any]]:
    """What each rank says of its end."""
    assert answer(run.scratch(0), 0, "done") is None
    return [answer(run.scratch(0), rank, "error") for rank in (0, 1)]


@pytest.mark.parametrize("model", DIVERGED)
def test_a_loss_or_weight_that_is_no_number_ends_all_ranks_as_diverged(model: str, ended: dict[str, Gang]) -> None:
    errors = errors_of(ended[model])
    assert [error["cause"] for error in errors] == ["diverged", "diverged"], errors
    assert len(errors[0]["details"].pop("rows")) == 16
    assert errors[0]["details"] == {"step": 5, "samples": [64, 80]}
    # The bad step was taken, but nothing was written after it.
    assert [one["step"] for one in answer(ended[model].scratch(0), 0)["checkpoints"]] == [1, 2, 3, 4]


def test_rows_without_numbers_are_named_as_what_a_loss_that_is_none_may_come_from(ended: dict[str, Gang]) -> None:
    errors = errors_of(ended["rows without numbers"])
    assert [error["cause"] for error in errors] == ["diverged", "diverged"], errors
    named = "Of their 16 rows some hold no number (missing, NaN or infinite): x in 1"
    assert all(named in error["message"] for error in errors)
    assert "shards.transform" in errors[0]["remedy"]


def test_a_replica_that_drifts_is_found_before_the_next_checkpoint(ended: dict[str, Gang]) -> None:
    errors = errors_of(ended["drifts"])
    assert [error["cause"] for error in errors] == ["corrupt", "corrupt"]
    assert errors[0]["message"] == "At step 8 ranks 0, 1 no longer hold the same parameters."
    assert [one["step"] for one in answer(ended["drifts"].scratch(0), 0)["checkpoints"]] == [4]


def test_a_checkpoint_that_cannot_be_saved_ends_all_ranks_at_a_later_step_with_its_cause(
    ended: dict[str, Gang],
) -> None:
    run = ended["cannot be saved"]
    errors = errors_of(run)
    assert [error["cause"] for error in errors] == ["corrupt", "corrupt"]
    assert errors[0]["message"].startswith(f"{TRAINING}/checkpoints/8-g0/weights-0.safetensors exists already")
    progress = answer(run.scratch(0), 0)
    assert ([one["step"] for one in progress["checkpoints"]], progress["step"] in range(8, 13)) == ([4], True)


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_the_first_step(case: str, ended: dict[str, Gang]) -> None:
    _, cause, sentence = REFUSED[case]
    for error in errors_of(ended[case]):
        assert (error["cause"], error["message"][: len(sentence)]) == (cause, sentence)
    assert answer(ended[case].scratch(0), 0)["step"] == 0
