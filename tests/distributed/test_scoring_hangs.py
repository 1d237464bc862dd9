"""A rank that hangs in the user's step while a gang verifies or scores: progress decides, and its stack says where."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import Hung
from data_contracts.messages.children import EVALUATE, VERIFY, Child, LaidOut, RemoteJob
from data_contracts.messages.gang import Launch
from data_contracts.pipeline_spec import RetrySpec
from infra.code_bundle import pack
from infra.gang.members import Liveness
from infra.gang.rank_files import RankFiles, write_launch
from infra.gang.ranks import take_stacks
from infra.gang.remote_job import RemoteJobRequest, run_remote_job
from infra.store import layout
from tests.distributed.conftest import PROJECT
from tests.support.gang import torchrun
from tests.support.pool import until
from tests.support.scoring import LAYOUTS, Scoring

RANK = "training.score.rank"
URI = layout.remote_job("20260101-000000-abc", "evaluate-1")
HANG_S = 3.0
LOGGED = {"metrics": {"loss": {"logged": "test_loss", "mode": "min"}}}
# Case: where rank 1 hangs, how the ranks hold the parameters, the limit that finds it, and where it stands.
HANGS = [
    ("predict_step", "ddp", "hang_s", "between"),
    pytest.param("test_step", "fsdp", "hang_s", "between", marks=pytest.mark.slow),
    # The first step of a module may compile, so verify's only step has the limit of a start.
    ("training_step", "fsdp", "stall_s", "hooks"),
]


def asked(scoring: Scoring, where: str, name: str = "") -> tuple[Child[Any, Any], LaidOut]:
    """The job in which the step is called, with a checkpoint called `name`; default: as the step."""
    if where == "training_step":
        return VERIFY, scoring.verification(scoring.checkpoint(name or where, scoring.held(8)))
    changes = LOGGED if where == "test_step" else {"batch_size": 4}
    return EVALUATE, scoring.evaluation(scoring.checkpoint(name or where), **changes)


def found_by(liveness: Liveness, ranks: list[RankFiles]) -> Hung:
    """Follow the ranks' reports, as a conductor does, until one of them is hung."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for rank in ranks:
            if (report := rank.report()) is not None:
                liveness.hear(report, "node 0")
        if (stuck := liveness.stuck([], 1)) is not None:
            assert isinstance(stuck, Hung)
            return stuck
        time.sleep(0.1)
    raise AssertionError("no rank was found")


@pytest.mark.parametrize(("where", "strategy", "limit", "place"), HANGS)
def test_a_rank_that_hangs_in_a_step_is_found_with_its_stack(
    where: str, strategy: str, limit: str, place: str, scoring: Scoring, tmp_path: Path
) -> None:
    child, request = asked(scoring, where)
    launch = Launch(
        training=URI, entry=RANK, code=scoring.code, nodes=1, devices=2, heartbeat_s=0.2,
        train={**LAYOUTS[strategy], "collective_timeout_s": 60},
        remote_job=RemoteJob.of(child.module, request).to_json(),
    )  # fmt: skip
    environment = scoring.environment(tmp_path, TRAINWRIGHT_LAUNCH=str(write_launch(tmp_path, launch)), HANGS=where)
    process = torchrun(RANK, 2, environment, PROJECT)
    ranks = [RankFiles(tmp_path, number) for number in range(2)]
    try:
        # A busy machine may take longer to start a rank than a rank may stand still.
        until(lambda: all(rank.report() is not None for rank in ranks))
        limits = {"hang_s": 600.0, "stall_s": 600.0, "stopped_s": 600.0, limit: 8.0 if limit == "stall_s" else HANG_S}
        found = found_by(Liveness(**limits), ranks)
        stacks = take_stacks(ranks)
    finally:
        # Each rank has a session of its own.
        for pid in (process.pid, *(pid for rank in ranks if (pid := rank.pid()) is not None)):
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
    logs = "\n".join(path.read_text() for path in tmp_path.glob("log*.txt"))
    assert found.details["rank"] == 1, logs
    assert f"stands still ({place})" in found.message
    assert "nets.py" in stacks[1]
    assert f"in {where}" in stacks[1]
    assert "in hang" in stacks[1]
    assert "in hang" not in stacks[0], "rank 0 waits for it"


@pytest.mark.slow
def test_a_gang_whose_rank_hangs_is_killed_and_its_stacks_are_kept(
    scoring: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANGS", "predict_step")
    scoring.code = pack(PROJECT, scoring.store).ref
    child, request = asked(scoring, "predict_step", "conducted")
    request = RemoteJobRequest(
        uri=URI, job=RemoteJob.of(child.module, request), holder="test", retry=RetrySpec(hung=0), rollcall_timeout_s=60,
        on_progress=lambda progress: None, on_spent=lambda seconds: None, hang_s=HANG_S, nodes=1, devices=2, entry=RANK,
        layout={**LAYOUTS["ddp"], "collective_timeout_s": 60},
    )  # fmt: skip
    with pytest.raises(Hung) as caught:
        run_remote_job(scoring.store, request)
    assert caught.value.message.startswith("Rank 1 on node 0")
    assert "in predict_step" in caught.value.details["stacks"]["1"]
    assert "nets.py" not in caught.value.details["stacks"]["0"]
