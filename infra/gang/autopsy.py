"""Whose failure caused the others on one node, by what its ranks left: errors, ends without one, the end of their logs.

Pure functions: the same remains give the same verdict, in whatever order they were noticed. What a rank raised counts
by its kind. A text decides only where a process could raise nothing: it was aborted by a library, whose last lines then
say why. Between nodes, `infra.gang.members.first_cause` decides.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from data_contracts.errors import Hung, NodeLost, OutOfMemory, Preempted, TrainwrightError, UserCodeError

# What CUDA says of a device that is broken, whatever the program does. An illegal access or a failed launch may be the
# fault of either, and is the program's more often.
BROKEN_DEVICE = re.compile(
    r"uncorrectable (ECC|NVLink) error|(hardware stack|or a hardware) error"
    r"|CUDA-capable device\(s\) is/are busy or unavailable|CUDA error: unknown error|Cuda failure 999"
)
DEVICE_ASSERT = "device-side assert"
ASSERT_REMEDY = "Run with CUDA_LAUNCH_BLOCKING=1, or on a CPU, to see the line; then correct it."
BROKEN_REMEDY = "Look at the machine (`nvidia-smi -q`); `trainwright drain NODE` keeps it from trainings."
# The last line of an exception in a thread of C++, as NCCL's watchdog raises it; then the process aborts.
_ABORTED = re.compile(r"terminate called after throwing an instance of '([\w:]+)'\n\s*what\(\):\s*(.*)")
# What its class and text say: the error, its sentence, its remedy, and details.
_ABORTS: Sequence[tuple[re.Pattern[str], type[TrainwrightError], str, str | None, Mapping[str, bool]]] = (
    (
        re.compile(r"std::bad_alloc|CUDA error: out of memory|Cuda failure[^\n]*out of memory"),
        OutOfMemory,
        "ran out of memory, and a library aborted it",
        None,
        {},
    ),
    (BROKEN_DEVICE, NodeLost, "has a broken device, and NCCL's watchdog aborted it", BROKEN_REMEDY, {"broken": True}),
    (
        re.compile(DEVICE_ASSERT),
        UserCodeError,
        "failed an assertion on its device, such as an index that is out of bounds",
        ASSERT_REMEDY,
        {},
    ),
    (
        re.compile("collective operation timeout"),
        Hung,
        "was aborted: another rank did not answer it",
        None,
        {"link": True},
    ),
    (
        re.compile("c10::DistBackendError"),
        NodeLost,
        "was aborted: its connection to another was lost",
        None,
        {"link": True},
    ),
)
# torchrun's line about the first rank that failed.
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: \d+\)")
# A process may have died so long before it was seen to be dead.
SEEN_WITHIN_S = 0.06
# The end of a process that the kernel kills for want of memory is seen within this time: it gives much memory back.
KILLED_WITHIN_S = 10.0


@dataclass(frozen=True)
class RankFailure:
    """How a rank failed.

    Attributes:
        error: what it reported; None if its process ended without a report.
        at: when it reported, or was first seen to be dead, in seconds since the epoch.
        printed: the end of its log, for this machine alone; log: the same as others may read it.
    """

    rank: int
    at: float
    error: TrainwrightError | None = None
    printed: str = ""
    log: str = ""


def root_failure(
    failures: Sequence[RankFailure], *, killed_at: float, codes: Mapping[int, int]
) -> TrainwrightError | None:
    """The failure that caused the others of a node; None if there is none.

    An error about a connection is a consequence where there is another one. So is an internal error after it, and that
    a rank was asked to stop, unless it was asked first.

    Args:
        killed_at: when the kernel last killed a process of the machine for want of memory; 0 if it has not.
        codes: exit codes of ranks, by rank, as far as they are known.
    """
    errors = {failure.rank: _error_of(failure, killed_at, codes.get(failure.rank)) for failure in failures}
    in_order = sorted((failure.at - SEEN_WITHIN_S * (failure.error is None), failure.rank) for failure in failures)
    causes = [errors[rank] for _, rank in in_order]
    if not causes or isinstance(causes[0], Preempted):
        return causes[0] if causes else None
    after_link = bool(causes[0].details.get("link"))
    return next((error for error in causes if not _is_consequence(error, after_link=after_link)), causes[0])


def _error_of(failure: RankFailure, killed_at: float, code: int | None) -> TrainwrightError:
    error = failure.error
    if error is None:
        return ended(failure, killed_at=killed_at, code=code)
    if not (error.details.get("killed") and _is_soon(failure, killed_at)):
        return error
    return OutOfMemory(error.message, user_traceback=error.user_traceback, details=error.details)


def _is_consequence(error: TrainwrightError, *, after_link: bool) -> bool:
    return bool(error.details.get("link")) or isinstance(error, Preempted) or (after_link and error.cause == "internal")


def _is_soon(failure: RankFailure, killed_at: float) -> bool:
    return abs(failure.at - killed_at) < KILLED_WITHIN_S


def ended(failure: RankFailure, *, killed_at: float, code: int | None = None) -> TrainwrightError:
    """The error for a rank whose process ended without a report."""
    rank, details = failure.rank, {"rank": failure.rank, "log": failure.log, "when": failure.at}
    aborted = _ABORTED.findall(failure.printed) if code in (None, -signal.SIGABRT) else []
    for pattern, kind, how, remedy, more in _ABORTS if aborted else ():
        if pattern.search(" ".join(aborted[-1])):
            return kind(f"Rank {rank} {how}.", remedy=remedy, details={**details, **more})
    if _is_soon(failure, killed_at) and code in (None, -signal.SIGKILL):
        return OutOfMemory(f"The kernel killed rank {rank} because the machine ran out of memory.", details=details)
    signals = {-number: number.name for number in signal.Signals}
    how = "" if code is None else f" ({signals.get(code, f'exit code {code}')})"
    where_log_is = f" {failure.log}" if failure.log != failure.printed else ""
    return NodeLost(f"Rank {rank} ended without an answer{how}.{where_log_is}", details=details)


def exit_codes(torchrun_log: str, first_rank: int) -> dict[int, int]:
    """The exit codes of ranks that torchrun's log names, by rank; below 0: the number of the signal."""
    return {first_rank + int(local): int(code) for code, local in _FAILED.findall(torchrun_log)}


def node_error(node: int, error: TrainwrightError | None, *, asked_to_stop: bool) -> TrainwrightError | None:
    """What a node whose ranks have failed says: that it was asked to stop, where that explains the failure.

    A rank that `exits` may do so in a signal handler of the user's or of a library.

    Args:
        error: of its ranks; None if they were ended before they had failed.
    """
    if asked_to_stop and (
        error is None or isinstance(error, NodeLost) or error.details.get("link") or error.details.get("exits")
    ):
        return Preempted(f"Node {node} was asked to stop and its ranks wrote no checkpoint in time.")
    return error
