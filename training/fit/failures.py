"""Maps any exception of a training to the error tree: who has to act, and which cause decides what follows."""

from __future__ import annotations

import importlib.util
import re
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from data_contracts.errors import (
    Cancelled,
    CorruptError,
    Hung,
    NodeLost,
    OutOfMemory,
    TrainwrightError,
    UsageError,
    UserCodeError,
)
from data_contracts.quoting import describe, text_of
from training import lightning_adapter
from training.fit.launch_context import Context
from training.fit.reports import Reports
from training.user.imports import is_theirs, raised_in_project, user_traceback

# What is said where memory is asked for without torch's allocator: by the driver, by cuBLAS and by NCCL.
_NO_MEMORY = re.compile(
    r"can't allocate memory|CUDA error: out of memory|Cuda failure[^\n]*out of memory|CUBLAS_STATUS_ALLOC_FAILED"
)
# What CUDA says of a device that is broken, whatever the program does. An illegal access or a failed launch may be the
# fault of either, and is the program's more often.
_BROKEN_DEVICE = re.compile(
    r"uncorrectable (ECC|NVLink) error|(hardware stack|or a hardware) error"
    r"|CUDA-capable device\(s\) is/are busy or unavailable"
)
# What gloo and NCCL say when a peer has died, and when it does not answer. gloo raises plain RuntimeErrors for both.
_PEER_GONE = re.compile(
    r"connection (was )?(closed|reset|refused)|closed by peer|broken pipe|socket (error|timeout)|unhandled system error"
    r"|remote process exited|ncclremoteerror|store.*(closed|broken)|gloo connectfullmesh failed",
    re.IGNORECASE,
)
_PEER_SILENT = re.compile(r"timed out|timeout|wait timeout", re.IGNORECASE)
_TRANSPORT = re.compile(r"gloo|nccl|tcpstore|c10d|connection|watchdog", re.IGNORECASE)


def module_file(name: str) -> Path:
    """The file of a module, given its full name; ImportError if there is no such module."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise ImportError(f"There is no module {name}.", name=name)
    return Path(found.origin)


# Modules have their full names here, so that a name that no longer exists is an error now and not a wrong answer later.
_OURS = module_file("training").parent
# Our files that stand between Lightning and a module and do no work of their own.
_PASS_ON = {
    module_file("training.fit.rank"),
    module_file("training.fit.assembly"),
    module_file("training.fit.loop"),
    module_file("training.fit.strategies"),
    module_file("training.user.ready"),
}
_ADAPTER = module_file("training.lightning_adapter")
# What a collective raises is for its caller to answer: strategies and batch norm over ranks begin some themselves.
_COLLECTIVES = {module_file("torch.distributed.distributed_c10d"), module_file("torch.distributed.c10d_logger")}
# Where this rank restores its own part of a checkpoint, beside Lightning's.
_RESTORING = {module_file("training.checkpoint.saver"), module_file("training.fit.resume")}


def report_failure(error: BaseException, context: Context, reports: Reports) -> TrainwrightError:
    """Report an error at once: other ranks fail as soon as this one ends, and the first report decides the cause."""
    failed = classify(error, context.project, timeout_s=context.train.collective_timeout_s)
    reports.failed(failed)
    return failed


def classify(error: BaseException, project: Path, *, timeout_s: float) -> TrainwrightError:
    """The error of the tree that `error` stands for.

    Args:
        project: root of the user's code; an exception with a frame there is the user's.
        timeout_s: how long a collective waits, in seconds, for the message.
    """
    if isinstance(error, TrainwrightError) and not is_theirs(error, project):
        return error
    # Lightning answers Ctrl-C with sys.exit.
    if isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt):
        return Cancelled("The rank was interrupted.")
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or _NO_MEMORY.search(str(error)):
        return OutOfMemory(
            f"A rank ran out of memory: {describe(error, project)}.", user_traceback=user_traceback(error, project)
        )
    # Before the user's frames: a peer's death surfaces in whichever collective the user's step called.
    transport = _transport(error, timeout_s)
    if transport is not None:
        return transport
    # So does a broken device, at whatever line its work is waited for.
    if _BROKEN_DEVICE.search(text_of(error)):
        return NodeLost(
            f"A device of this machine is broken: {describe(error, project)}.",
            remedy="Look at the machine (`nvidia-smi -q`); `trainwright drain NODE` keeps it from trainings.",
            user_traceback=user_traceback(error, project),
            details={"broken": True},
        )
    if raised_in_project(error, project):
        return UserCodeError(
            f"The user's code raised {describe(error, project)}.", user_traceback=user_traceback(error, project)
        )
    if "device-side assert" in str(error):
        # A device fails later than the line that gave it the work: the error comes out wherever it is waited for next.
        return UserCodeError(
            f"An assertion failed on the device, such as an index that is out of bounds: {describe(error, project)}.",
            remedy="Run with CUDA_LAUNCH_BLOCKING=1, or on a CPU, to see the line; then correct it.",
            user_traceback=user_traceback(error, project),
        )
    # The Trainer or this rank was restoring a checkpoint's state.
    if any(map(_is_restoring, traceback.extract_tb(error.__traceback__))):
        return CorruptError(
            f"The training cannot continue from its checkpoint, which does not fit it: {describe(error, project)}."
        )
    if isinstance(error, SystemExit):
        return UserCodeError("The training ended the process.", user_traceback=user_traceback(error, project))
    library = _raised_in_library(error)
    if isinstance(error, MisconfigurationException) or library == "lightning":
        return UsageError(
            f"train.lightning: {describe(error, project)}.", remedy="Correct the Lightning config or the module."
        )
    if library is not None:
        # The config named a class or optimizer of a library. No frame is the user's, but the choice is.
        return UserCodeError(
            f"{library} raised {describe(error, project)}.", user_traceback=user_traceback(error, project)
        )
    return TrainwrightError(
        f"The training failed: {describe(error, project)}.", user_traceback=user_traceback(error, project)
    )


def _is_restoring(frame: traceback.FrameSummary) -> bool:
    ours = frame.name.startswith("restore_") and Path(frame.filename) in _RESTORING
    return ours or lightning_adapter.is_restoring(frame)


def _raised_in_library(error: BaseException) -> str | None:
    """The package that raised, if only Lightning and our pass-through code called it; else None."""
    files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    callers = [file for file in files if file not in _COLLECTIVES]
    # The adapter does no work of its own; its caller counts.
    ours = [file for file in callers if file.is_relative_to(_OURS) and file != _ADAPTER]
    if not ours or callers[-1].is_relative_to(_OURS) or ours[-1] not in _PASS_ON:
        return None
    parts = files[-1].parts
    return parts[parts.index("site-packages") + 1] if "site-packages" in parts else None


def _transport(error: BaseException, timeout_s: float) -> TrainwrightError | None:
    text = str(error)
    known = isinstance(error, dist.DistError)
    if not known and not (isinstance(error, RuntimeError | OSError) and _TRANSPORT.search(text)):
        return None
    if _PEER_GONE.search(text):
        return NodeLost(f"The connection to another rank was lost: {describe(error)}.", details={"link": True})
    if _PEER_SILENT.search(text):
        sentence = f"Another rank did not answer for {timeout_s:g} s: {describe(error)}."
        return Hung(sentence, details={"link": True})
    return NodeLost(f"A collective failed: {describe(error)}.", details={"link": True}) if known else None
