"""Whose fault an exception was: the cause decides what is tried again, so each kind has one."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric.utilities import distributed
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.distributed import distributed_c10d

from data_contracts.errors import TrainwrightError, UsageError
from training.fit import strategies
from training.fit.failures import classify

HERE = Path(__file__).parent


def interrupted_through_lightning() -> BaseException:
    error = SystemExit(1)
    error.__context__ = KeyboardInterrupt()
    return error


LOST = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711"
SILENT = "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:86] Timed out waiting 60000ms for recv operation"

ECC = "CUDA error: uncorrectable ECC error encountered"
CASES: dict[str, tuple[BaseException, str, int]] = {
    "ours": (UsageError("as it was."), "usage", 2),
    "a lost peer": (RuntimeError(LOST), "node_lost", 5),
    "a silent peer": (RuntimeError(SILENT), "hung", 5),
    "a network error of torch": (torch.distributed.DistNetworkError("failed to recv, got 0 bytes"), "node_lost", 5),
    "a backend's error": (torch.distributed.DistBackendError("NCCL error: remote process exited"), "node_lost", 5),
    "no memory on a device": (torch.OutOfMemoryError("CUDA out of memory"), "out_of_memory", 8),
    "no memory here": (MemoryError(), "out_of_memory", 8),
    "no memory in torch's allocator": (
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8e12 bytes."),
        "out_of_memory",
        8,
    ),
    "no memory for the driver": (
        torch.AcceleratorError("CUDA error: out of memory\nSearch for it"),
        "out_of_memory",
        8,
    ),
    "no memory for NCCL": (
        torch.distributed.DistBackendError("NCCL error\nLast error:\nCuda failure 2 'out of memory'"),
        "out_of_memory",
        8,
    ),
    "an assertion on a device, found out by a look of ours": (
        RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be reported later"),
        "user_code",
        8,
    ),
    "broken memory of a device": (
        torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered\nSearch for it"),
        "node_lost",
        5,
    ),
    "a broken link of devices": (
        RuntimeError("CUDA error: uncorrectable NVLink error detected during the execution"),
        "node_lost",
        5,
    ),
    "a misuse of Lightning": (MisconfigurationException("no training_step"), "usage", 2),
    "the process ended": (SystemExit(0), "user_code", 8),
    "Ctrl-C": (KeyboardInterrupt(), "cancelled", 130),
    "Ctrl-C through Lightning": (interrupted_through_lightning(), "cancelled", 130),
    "anything else": (ZeroDivisionError("of ours"), "internal", 1),
}


@pytest.mark.parametrize(("error", "cause", "exit_code"), CASES.values(), ids=CASES)
def test_an_exception_has_a_cause(error: BaseException, cause: str, exit_code: int, tmp_path: Path) -> None:
    found = classify(error, tmp_path, timeout_s=60)
    assert (found.cause, found.exit_code) == (cause, exit_code)
    assert found.message.endswith(".")


@pytest.mark.parametrize(("text", "cause"), [("too much", "user_code"), (LOST, "node_lost"), (ECC, "node_lost")])
def test_what_passes_through_the_users_frames_is_theirs_unless_a_peer_was_lost(text: str, cause: str) -> None:
    def their_step() -> None:
        raise RuntimeError(text)

    with pytest.raises(RuntimeError) as caught:
        their_step()
    found: TrainwrightError = classify(caught.value, HERE, timeout_s=60)
    assert found.cause == cause
    assert ("their_step" in found.user_traceback) == (text != LOST)


class Refused(Exception):
    """As a client of a bucket raises it."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"An error occurred ({code})")
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


Refused.__module__ = "botocore.exceptions"
# What the user's code raises, and from what; what comes of it. Only what is away for now is tried again.
THEIRS: list[tuple[BaseException, BaseException | None, str]] = [
    (OSError(errno.ENOSPC, "No space left on device"), None, "storage"),
    (FileNotFoundError(errno.ENOENT, "No such file"), None, "user_code"),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), None, "out_of_memory"),
    (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), None, "storage"),
    (RuntimeError("features: connection refused"), None, "user_code"),
    (RuntimeError("No CUDA GPUs are available"), None, "user_code"),
    (RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error."), None, "user_code"),
    (Refused(503, "SlowDown"), None, "storage"),
    (Refused(400, "ExpiredToken"), None, "storage"),
    (Refused(403, "AccessDenied"), None, "user_code"),
    (ValueError("cannot average"), RuntimeError(LOST), "node_lost"),
    (ValueError("too large"), torch.OutOfMemoryError("CUDA out of memory"), "out_of_memory"),
    (ValueError("no such name"), KeyError("name"), "user_code"),
    (ValueError("no answer"), ConnectionRefusedError("connection refused"), "user_code"),
]


@pytest.mark.parametrize(("error", "under", "cause"), THEIRS)
def test_what_the_users_code_raises_counts_by_its_type(
    error: BaseException, under: BaseException | None, cause: str
) -> None:
    def their_step() -> None:
        try:
            if under is not None:
                raise under
        except BaseException as beneath:
            raise error from beneath
        raise error

    with pytest.raises(type(error)) as caught:
        their_step()
    assert classify(caught.value, HERE, timeout_s=60).cause == cause


def test_what_a_collective_of_lightnings_refuses_is_raised_by_torch(tmp_path: Path) -> None:
    # As when Lightning reduces what a library's module logged on a device without a backend.
    files = [strategies.__file__, distributed.__file__, distributed_c10d.__file__]
    names: dict[str, Any] = {"call0": None}
    for number, file in enumerate(reversed(files)):
        exec(compile(f"def call{number + 1}(): call{number}()", file, "exec"), names)
    with pytest.raises(TypeError) as caught:
        names["call3"]()
    found = classify(caught.value.with_traceback(caught.tb.tb_next), tmp_path, timeout_s=60)
    assert (found.cause, found.message.split()[0]) == ("user_code", "torch")
