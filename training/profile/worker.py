"""The child process that profiles a short training: `python -m training.profile.worker REQUEST ANSWER`.

It trains in a scratch folder as a rank does, and neither opens a store nor writes a checkpoint. This process is rank 0;
it starts the other ranks beside itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torchmetrics import Metric

from data_contracts.errors import Interrupted, TrainwrightError, UsageError, from_json
from data_contracts.messages.children import Advanced
from data_contracts.messages.commands import PROFILE, ProfileRequest, StepProfile
from data_contracts.pipeline_spec import TrainSpec
from infra.processes.child_main import PARENT, Report, child_main
from infra.processes.processes import module_command
from training.fit.failures import classify
from training.fit.launch_context import Context
from training.fit.loop import install
from training.fit.measuring import History
from training.fit.rank import our_loaders, owned_settings, prepare
from training.lightning_adapter import call_at_the_end
from training.loader import TrainLoader
from training.loader.loaders import CountRows, with_view
from training.order import Plan
from training.profile.steps import (
    Done,
    PhaseClock,
    ProfiledSteps,
    ValidationClock,
    peaks,
    time_parts,
    with_ready_batches,
)
from training.user.ready import build_all

# How long a rank that failed may take to say so.
_ENDS_WITHIN_S = 5.0
_HALF = {"bf16": torch.bfloat16, "16": torch.float16}


def main(request: ProfileRequest, report: Report) -> StepProfile:
    """Take the steps on all ranks, and answer with what rank 0 saw.

    Raises:
        UsageError: the training ends before a step was timed, or its settings are refused.
        UserCodeError: the module raised.
    """
    if "RANK" in os.environ:
        return profiled(request, report)
    os.environ.update(_place(request, 0, _free_port()))
    others = [_start(request, rank) for rank in range(1, request.ranks)]
    try:
        return profiled(request, report)
    except Interrupted as error:
        raise _cause(others) or error from error
    finally:
        for process, _ in others:
            process.kill()


def profiled(request: ProfileRequest, report: Report) -> StepProfile:
    """This rank's part; errors as the error tree has them."""
    context = _context(request)
    prepare(context)
    threads = os.environ["OMP_NUM_THREADS"].partition(",")[0]
    if threads.isdigit() and int(threads):
        torch.set_num_threads(int(threads))  # torch is imported already, and has read the variable
    try:
        return _profiled(context, request, report)
    except TrainwrightError:
        raise
    except BaseException as error:
        raise classify(error, context.project, timeout_s=context.train.collective_timeout_s) from error


def _profiled(context: Context, request: ProfileRequest, report: Report) -> StepProfile:
    plan, loaders = our_loaders(context)
    loader = loaders.get("train_dataloaders")
    accumulate = plan.accumulate if plan else 1
    on_gpu = torch.cuda.is_available()
    clock = PhaseClock(settle=torch.cuda.synchronize if on_gpu else None)
    steps = ProfiledSteps(request, clock, accumulate, traces=context.rank == 0)
    owned = {**owned_settings(context, plan), "logger": History()}
    callbacks = [CountRows(), ValidationClock(clock)]
    module, datamodule, trainer = build_all(
        context.settings, context.project, str(context.dataset_path or ""), owned, callbacks
    )
    if request.compiled:
        compile_parts(module)
    if request.batches_ready:
        with_ready_batches(loaders, datamodule or module, (request.warmup + request.steps) * accumulate)
    install(trainer, steps, steps)
    time_parts(trainer, clock)
    call_at_the_end(trainer, lambda: steps.close(trainer))
    report(Advanced(done=1, long=True))
    try:
        with contextlib.suppress(Done):
            trainer.fit(module, datamodule=datamodule, **with_view(loaders))
    finally:
        if isinstance(loader, TrainLoader):
            loader.close()
    if not steps.step_s:
        raise UsageError(
            f"The training ends before a step can be timed: the first {request.warmup} steps are its warm-up.",
            remedy="Raise trainer.max_epochs, max_steps or limit_train_batches, or give more data.",
        )
    spent = loader.spent if isinstance(loader, TrainLoader) else {"your loader": 1.0}
    return _answer(context, plan, trainer.strategy.root_device, steps, spent)


def _answer(
    context: Context, plan: Plan | None, device: torch.device, steps: ProfiledSteps, spent: Mapping[str, float]
) -> StepProfile:
    counter = steps.counter if steps.counted else None
    rates = peaks(device, _dtype(context)) if counter is not None else (0.0, 0.0)
    return StepProfile(
        device=device.type,
        world_size=context.world_size,
        rows=context.train.global_batch_size,
        accumulate=plan.accumulate if plan else 1,
        steps_per_epoch=plan.steps_per_epoch if plan else 0,
        step_s=steps.step_s,
        phases=steps.phases,
        data_cause=max(spent, key=lambda name: spent[name], default=""),
        exchange_s=steps.exchange_s,
        flops=counter.flops if counter else 0,
        bytes=counter.bytes if counter else 0,
        peak_flops=rates[0],
        peak_bytes=rates[1],
        checkpoint_s=steps.checkpoint_s,
        traced=steps.traced,
        cut=steps.cut,
        operations=steps.operations,
    )


def compile_parts(module: LightningModule) -> None:
    """Compile each submodule of a module that is called as one."""
    for part in module.children():
        if not isinstance(part, Metric | nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict):
            part.compile()


def _dtype(context: Context) -> torch.dtype:
    """The type in which the module multiplies."""
    precision = str((context.lightning.get("trainer") or {}).get("precision") or "")
    return _HALF.get(precision.partition("-")[0], torch.float32)


def _context(request: ProfileRequest) -> Context:
    """The context of a rank that has neither store nor checkpoint."""
    train = TrainSpec.model_validate(request.train)
    assert isinstance(train.lightning, dict), "the request inlines the Lightning config"
    # Loggers of the config would report this training to their servers.
    config: dict[str, Any] = dict(train.lightning)
    config["trainer"] = {name: value for name, value in (config.get("trainer") or {}).items() if name != "logger"}
    return Context(
        training="",
        generation=0,
        train=train.model_copy(update={"lightning": config}),
        lightning=config,
        dataset=request.dataset,
        mixture=request.mixture,
        dataset_path=Path(request.dataset_path) if request.dataset_path else None,
        init_from=None,
        resume=None,
        skip=[],
        stop=None,
        provenance={},
        targets=[],
        sealed={},
        heartbeat_s=1.0,
        rank=int(os.environ["RANK"]),
        local_rank=int(os.environ["LOCAL_RANK"]),
        world_size=request.ranks,
        local_world_size=request.ranks,
        devices=request.devices,
        nodes=request.nodes,
        scratch=Path(request.folder),
        project=Path(request.project).resolve(),
        store_uri="",
        store_options={},
    )


def _start(request: ProfileRequest, rank: int) -> tuple[subprocess.Popen[bytes], Path]:
    """Another rank of the same request, and the file of its answer."""
    answer = Path(sys.argv[2]).with_name(f"answer-{rank}.json")
    environment = {**os.environ, **_place(request, rank, int(os.environ["MASTER_PORT"])), PARENT: str(os.getpid())}
    return subprocess.Popen(module_command(PROFILE.module, sys.argv[1], str(answer)), env=environment), answer


def _cause(others: Sequence[tuple[subprocess.Popen[bytes], Path]]) -> TrainwrightError | None:
    """Why another rank ended, which is why the connection to it was lost."""
    until = time.monotonic() + _ENDS_WITHIN_S
    while time.monotonic() < until and not any(answer.exists() for _, answer in others):
        time.sleep(0.05)
    for _, answer in others:
        found = json.loads(answer.read_text()) if answer.exists() else {}
        if "error" in found and not isinstance(error := from_json(found["error"]), Interrupted):
            return error
    return None


def _place(request: ProfileRequest, rank: int, port: int) -> dict[str, str]:
    """The variables with which torchrun places a rank."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % request.devices),
        "GROUP_RANK": str(rank // request.devices),
        "WORLD_SIZE": str(request.ranks),
        "LOCAL_WORLD_SIZE": str(request.devices),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "profile",
    }


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


if __name__ == "__main__":
    child_main(PROFILE, main)
