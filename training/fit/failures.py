"""Maps any exception of a training to the error tree: who has to act, and which cause decides what follows."""

from __future__ import annotations

import errno
import importlib.util
import re
import socket
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
    StorageUnavailable,
    TrainwrightError,
    UsageError,
    UserCodeError,
)
from data_contracts.quoting import describe
from infra.gang.autopsy import ASSERT_REMEDY, BROKEN_DEVICE, BROKEN_REMEDY, DEVICE_ASSERT
from training import lightning_adapter
from training.fit.launch_context import Context
from training.fit.reports import Reports
from training.user.imports import in_project, is_theirs, raised_in_project, user_traceback

# What is said where memory is asked for without torch's allocator: by the driver, by cuBLAS and by NCCL.
_NO_MEMORY = re.compile(
    r"can't allocate memory|CUDA error: out of memory|Cuda failure[^\n]*out of memory|CUBLAS_STATUS_ALLOC_FAILED"
)
# What torch.cuda raises before its first work where a machine has no GPU that works.
_NO_DEVICE = re.compile(
    r"No CUDA GPUs are available|CUDA unknown error|CUDA driver initialization failed|The NVIDIA driver on your system"
)
# What a data loader of torch raises for a worker process that a signal has ended.
_WORKER_ENDED = re.compile(r"DataLoader worker \(pid \d+\) is killed by signal: (Bus error|Killed)")
# What gloo and NCCL say when a peer has died, and when it does not answer. gloo raises plain RuntimeErrors for both.
_PEER_GONE = re.compile(
    r"connection (was )?(closed|reset|refused)|closed by peer|broken pipe|socket (error|timeout)|unhandled system error"
    r"|remote process exited|ncclremoteerror|store.*(closed|broken)|gloo connectfullmesh failed",
    re.IGNORECASE,
)
_PEER_SILENT = re.compile(r"timed out|timeout|wait timeout", re.IGNORECASE)
# Words of torch's own messages, and words that other code has, too.
_OF_TORCH = re.compile(r"gloo|nccl|tcpstore|c10d", re.IGNORECASE)
_TRANSPORT = re.compile(r"connection|watchdog", re.IGNORECASE)
# A disk or a network file system that fails, and a network that does not carry; a wrong path is a mistake instead.
_AWAY = frozenset((
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ECONNREFUSED),
    *(errno.ECONNRESET, errno.ECONNABORTED, errno.EHOSTUNREACH, errno.ENETUNREACH),
))  # fmt: skip
# Answers of a bucket that mean "not now", beside all from 500 on.
_NOT_NOW = frozenset(("SlowDown", "RequestTimeout", "Throttling", "ExpiredToken", "RequestExpired"))


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
_TORCH = module_file("torch").parent
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
        return Cancelled("The rank was interrupted.", details={"exits": True})
    if _lacks_memory(error, project) or (error.__cause__ and _lacks_memory(error.__cause__, project)):
        return OutOfMemory(
            f"A rank ran out of memory: {describe(error, project)}.", user_traceback=user_traceback(error, project)
        )
    # Before the user's frames: what fails around them surfaces in them.
    if (outside := _outside(error, project, timeout_s)) is not None:
        return outside
    if raised_in_project(error, project):
        return UserCodeError(
            f"The user's code raised {describe(error, project)}.",
            user_traceback=user_traceback(error, project),
            details={"exits": True} if isinstance(error, SystemExit) else None,
        )
    if DEVICE_ASSERT in str(error):
        # A device fails later than the line that gave it the work: the error comes out wherever it is waited for next.
        return UserCodeError(
            f"An assertion failed on the device, such as an index that is out of bounds: {describe(error, project)}.",
            remedy=ASSERT_REMEDY,
            user_traceback=user_traceback(error, project),
        )
    # The Trainer or this rank was restoring a checkpoint's state.
    if any(map(_is_restoring, traceback.extract_tb(error.__traceback__))):
        return CorruptError(
            f"The training cannot continue from its checkpoint, which does not fit it: {describe(error, project)}."
        )
    if isinstance(error, SystemExit):
        return UserCodeError(
            "The training ended the process.", user_traceback=user_traceback(error, project), details={"exits": True}
        )
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


def _outside(error: BaseException, project: Path, timeout_s: float) -> TrainwrightError | None:
    """The error for a device, a peer, a source or a process that failed, whoever waited for it; None if none did."""
    # A broken device surfaces in whatever collective or line waits for its work.
    if _is_device_broken(error, project):
        return NodeLost(
            f"A device of this machine is broken: {describe(error, project)}.",
            remedy=BROKEN_REMEDY,
            user_traceback=user_traceback(error, project),
            details={"broken": True},
        )
    # A peer's death surfaces in a collective, and the user's code may answer it with an error of its own.
    for under in _beneath(error):
        if (transport := _transport(under, project, timeout_s)) is not None:
            return transport
    if any(map(_is_source_away, _beneath(error))):
        return StorageUnavailable(
            f"A source or a disk that this rank uses fails: {describe(error, project)}.",
            user_traceback=user_traceback(error, project),
        )
    if _worker_ended(error, project):
        # The node knows whether the kernel killed it for want of memory.
        sentence = f"A worker process of the data loader was killed: {describe(error, project)}."
        return NodeLost(sentence, user_traceback=user_traceback(error, project), details={"killed": True})
    return None


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


def _beneath(error: BaseException) -> list[BaseException]:
    """The error, and those that it was raised from or while it was handled."""
    under = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    # One without a traceback was never raised: it says nothing of what happened.
    return [error, *(_beneath(under) if under is not None and under.__traceback__ is not None else [])]


def _lacks_memory(error: BaseException, project: Path) -> bool:
    known = isinstance(error, torch.OutOfMemoryError | MemoryError) or _NO_MEMORY.search(str(error))
    # Workers of a data loader hand batches over in shared memory.
    return bool(known) or getattr(error, "errno", None) == errno.ENOMEM or _worker_ended(error, project) == "Bus error"


def _worker_ended(error: BaseException, project: Path) -> str:
    """The signal that has ended a worker process of torch's data loader; "" if none has."""
    text = str(error)
    ended = _WORKER_ENDED.match(text) if isinstance(error, RuntimeError) else None
    return ended[1] if ended is not None and _raised_in_torch(error, project) else ""


def _is_device_broken(error: BaseException, project: Path) -> bool:
    text = str(error)
    is_absent = isinstance(error, RuntimeError) and _NO_DEVICE.match(text) and _raised_in_torch(error, project)
    return bool(BROKEN_DEVICE.search(text) or is_absent)


def _is_source_away(error: BaseException) -> bool:
    """Whether what the user's code reads or writes is away for now, by the type of its error."""
    if isinstance(error, OSError):
        return error.errno == socket.EAI_AGAIN if isinstance(error, socket.gaierror) else error.errno in _AWAY
    answer = getattr(error, "response", None) if type(error).__module__.startswith("botocore.") else None
    if not isinstance(answer, dict):
        return False
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status >= 500 or answer.get("Error", {}).get("Code") in _NOT_NOW


def _raised_in_torch(error: BaseException, project: Path) -> bool:
    """Whether torch raised it, below the user's code or without it; unknown without a traceback: then it did."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [number for number, frame in enumerate(frames) if in_project(frame, project)]
    after = frames[theirs[-1] + 1 :] if theirs else frames
    return not frames or any(Path(frame.filename).is_relative_to(_TORCH) for frame in after)


def _transport(error: BaseException, project: Path, timeout_s: float) -> TrainwrightError | None:
    text = str(error)
    known = isinstance(error, dist.DistError)
    # A client of the user's own speaks of connections, too.
    is_torchs = _OF_TORCH.search(text) or (
        _TRANSPORT.search(text) and (not raised_in_project(error, project) or _raised_in_torch(error, project))
    )
    if not known and not (isinstance(error, RuntimeError | OSError) and is_torchs):
        return None
    if _PEER_GONE.search(text):
        return NodeLost(f"The connection to another rank was lost: {describe(error)}.", details={"link": True})
    if _PEER_SILENT.search(text):
        sentence = f"Another rank did not answer for {timeout_s:g} s: {describe(error)}."
        return Hung(sentence, details={"link": True})
    return NodeLost(f"A collective failed: {describe(error)}.", details={"link": True}) if known else None
