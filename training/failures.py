"""From any exception of a training to the error tree: whose fault it was, and which cause decides what follows."""

from __future__ import annotations

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
from training.user_code import describe, raised_in_project, user_traceback

# What gloo and NCCL say when the other side is gone, and when it stays silent. Both are plain RuntimeErrors in gloo.
_PEER_GONE = re.compile(
    r"connection (was )?(closed|reset|refused)|closed by peer|broken pipe|socket (error|timeout)|unhandled system error"
    r"|remote process exited|ncclremoteerror|store.*(closed|broken)|gloo connectfullmesh failed",
    re.IGNORECASE,
)
_PEER_SILENT = re.compile(r"timed out|timeout|wait timeout", re.IGNORECASE)
_OURS = Path(__file__).resolve().parent
# Files of ours that stand between Lightning and a module without doing work of their own.
_PASS_ON = {"rank.py", "loop.py", "strategies.py", "assemble.py", "validation.py"}
# Where a checkpoint is taken up: Lightning's part of it, and what this rank adds.
_RESTORING = {"checkpoint_connector.py", "rng.py", "running.py"}
_RESTORES = re.compile(r"_?restore_|resume_start")
_TRANSPORT = re.compile(r"gloo|nccl|tcpstore|c10d|connection|watchdog", re.IGNORECASE)


def classify(error: BaseException, project: Path, *, timeout_s: float) -> TrainwrightError:
    """The error of the tree that `error` stands for.

    Args:
        project: root of the user's code; an exception with a frame there is the user's.
        timeout_s: how long a collective waits, for the sentence.
    """
    if isinstance(error, TrainwrightError):
        return error
    # Lightning answers Ctrl-C with sys.exit.
    if isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt):
        return Cancelled("The rank was interrupted.")
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        return OutOfMemory(
            f"A rank ran out of memory: {describe(error)}.", user_traceback=user_traceback(error, project)
        )
    # Before the user's frames are looked at: a peer's death surfaces in whatever collective the user's step called.
    transport = _transport(error, timeout_s)
    if transport is not None:
        return transport
    if raised_in_project(error, project):
        return UserCodeError(
            f"The user's code raised {describe(error)}.", user_traceback=user_traceback(error, project)
        )
    if _taking_up(error):
        return CorruptError(f"The training cannot go on from its checkpoint, which does not fit it: {describe(error)}.")
    if isinstance(error, MisconfigurationException):
        return UsageError(f"train.lightning: {describe(error)}.", remedy="Correct the Lightning config or the module.")
    if isinstance(error, SystemExit):
        return UserCodeError("The training ended the process.", user_traceback=user_traceback(error, project))
    library = _raised_in_library(error)
    if library == "lightning":
        return UsageError(f"train.lightning: {describe(error)}.", remedy="Correct the Lightning config or the module.")
    if library is not None:
        # A class or optimizer that the config took from a library: no frame is the user's, the choice is.
        return UserCodeError(f"{library} raised {describe(error)}.", user_traceback=user_traceback(error, project))
    return TrainwrightError(f"The training failed: {describe(error)}.", user_traceback=user_traceback(error, project))


def _taking_up(error: BaseException) -> bool:
    """Whether a checkpoint's state was being given to the Trainer or to this rank."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(_RESTORES.match(frame.name) and Path(frame.filename).name in _RESTORING for frame in frames)


def _raised_in_library(error: BaseException) -> str | None:
    """The package that raised what nobody's code but Lightning's called, None if our own did more than pass it on."""
    files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    ours = [file.name for file in files if file.is_relative_to(_OURS)]
    if not files or files[-1].is_relative_to(_OURS) or not ours or ours[-1] not in _PASS_ON:
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
