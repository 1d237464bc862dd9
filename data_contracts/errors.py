"""The error tree: one class per cause, with its exit code, its retry budget's key and its remedy.

    TrainwrightError              1   internal error (a bug of ours)
    ├── UsageError                2   bad usage or spec
    │   └── SpecError             2   a field of the spec, with file and line
    ├── ContractRejected          3   the data broke its contract
    ├── PromiseBroken             3   `gameday`: a fault was not noticed or recovered from as promised
    ├── GateNotMet                4   gate not met
    │   ├── InsufficientEvidence  4   no rows, or rows other than the champion's
    │   ├── OnHold                4   a person rolled the alias back from these weights
    │   ├── ApprovalRefused       4   a person refused, or nobody answered in time
    │   └── ObjectiveMissed       4   `slo --check`: a service level objective is missed
    ├── Interrupted               5   try again
    │   ├── Preempted             5   `preempted`: at once
    │   ├── NodeLost              5   `node_lost`: with the remaining nodes
    │   ├── Hung                  5   `hung`: after killing it
    │   ├── StorageUnavailable    5   `storage`: with backoff
    │   ├── GangIncomplete        5   `admission`: if asked
    │   ├── Crashed               5   `crashed`: by `trainwright reap`
    │   └── Fenced                5   never: a newer generation or run owns this
    ├── CorruptError              6   corrupt or tampered
    ├── OverBudget                7   when the budget is raised
    ├── UserCodeError             8   the user's code raised, also on import
    │   ├── OutOfMemory           8   `oom`: once, smaller micro-batch
    │   └── Diverged              8   `diverged`: from the last committed, skipping batches
    ├── ApprovalPending           9   continues when answered
    └── Cancelled               130

An error carries one sentence (what, where) and one remedy (what to do). A child process answers with `to_json()`; its
parent raises the same class again with `from_json()`.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypedDict

from data_contracts.quoting import escaped

# In the details of a StorageUnavailable: what is away. A reaper resumes a run that ended for want of the server.
AWAY, SERVER = "away", "server"


class ErrorJson(TypedDict, total=False):
    """An error as `to_json` writes it and `from_json` reads it."""

    cause: str
    message: str
    remedy: str
    user_traceback: str
    details: dict[str, Any]


class TrainwrightError(Exception):
    """Root of the tree; raised itself only for a bug of ours.

    Args:
        message: one sentence that says what happened and where (file, line or field).
        remedy: one sentence that says what to do; the class's own if omitted.
        user_traceback: the traceback of the user's code, shown once, or "".
        details: facts for programs (counts, names, ids), as JSON can hold them.
    """

    cause: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = 1
    retry_key: ClassVar[str | None] = None
    default_remedy: ClassVar[str] = "This is a bug in Trainwright; please report it with the log."

    def __init__(
        self,
        message: str,
        *,
        remedy: str | None = None,
        user_traceback: str = "",
        details: dict[str, Any] | None = None,
    ) -> None:
        # A name or a value in it must not look like a line of ours, nor like a command to what shows it.
        self.message = "\n".join(map(escaped, message.split("\n") if isinstance(self, SpecError) else [message]))
        super().__init__(self.message)
        self.remedy = self.default_remedy if remedy is None else escaped(remedy)
        self.user_traceback = user_traceback
        self.details = details or {}

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()

    def to_json(self) -> ErrorJson:
        """The error as a JSON object that `from_json` turns back into the same class."""
        return {
            "cause": self.cause,
            "message": self.message,
            "remedy": self.remedy,
            "user_traceback": self.user_traceback,
            "details": self.details,
        }


class UsageError(TrainwrightError):
    """The command or its arguments cannot be carried out as given."""

    cause = "usage"
    exit_code = 2
    default_remedy = ""


class SpecError(UsageError):
    """A field of the spec is wrong. `message` begins with `file:line: field:`."""

    cause = "spec"


class ContractRejected(TrainwrightError):
    """The data broke its contract; no stage after validate ran."""

    cause = "contract_rejected"
    exit_code = 3
    default_remedy = "Correct the data, or change the suite if the data is right."


class PromiseBroken(TrainwrightError):
    """A game day injected no fault, or one was not noticed or not recovered from as docs/recovery.md promises."""

    cause = "promise_broken"
    exit_code = 3
    default_remedy = "docs/gameday.md says what to look at for each verdict."


class GateNotMet(TrainwrightError):
    """The candidate was not promoted; the alias stays where it was."""

    cause = "gate_not_met"
    exit_code = 4
    default_remedy = "Change the training or the gate and run again."


class InsufficientEvidence(GateNotMet):
    """The scores cannot decide: they cover no rows, or other rows than the champion's, or are not finite."""

    cause = "insufficient_evidence"
    default_remedy = "Give both models the same test rows, at least one, and run again."


class OnHold(GateNotMet):
    """A person rolled the alias back from this checkpoint; the same run may continue once it is released."""

    cause = "on_hold"
    default_remedy = "Lift the hold with `trainwright release`, or train other weights."


class ApprovalRefused(GateNotMet):
    """A person refused the promotion, or nobody approved it before the deadline."""

    cause = "approval_refused"
    default_remedy = "Begin a run by hand to ask again: `trainwright run SPEC`."


class ObjectiveMissed(GateNotMet):
    """A service level objective is missed, and `slo --check` asked."""

    cause = "objective_missed"
    default_remedy = "`trainwright status --html FILE` shows which runs failed."


class Interrupted(TrainwrightError):
    """Something outside the user's code stopped the work; the same run may continue."""

    cause = "interrupted"
    exit_code = 5
    default_remedy = "Run `trainwright resume` to continue from the last committed checkpoint."


class Preempted(Interrupted):
    """A node got a SIGTERM without a cancel marker."""

    cause = "preempted"
    retry_key = "preempted"


class NodeLost(Interrupted):
    """A process or machine of the gang ended without an answer."""

    cause = "node_lost"
    retry_key = "node_lost"


class Hung(Interrupted):
    """Processes are alive but the step counter does not move."""

    cause = "hung"
    retry_key = "hung"


class StorageUnavailable(Interrupted):
    """The store, a source or a server did not answer."""

    cause = "storage"
    retry_key = "storage"
    default_remedy = (
        "Check that it is reachable and that the credentials may use it; then try again, or resume the run."
    )


class GangIncomplete(Interrupted):
    """Not every node answered the roll-call before its deadline."""

    cause = "gang_incomplete"
    retry_key = "admission"


class Crashed(Interrupted):
    """The process that carried a run out died without a report, too often to be resumed again by itself."""

    cause = "crashed"
    retry_key = "crashed"
    default_remedy = "Find out what ends it, then run `trainwright resume`: the budget begins anew."


class Fenced(Interrupted):
    """A newer generation or another run owns this training."""

    cause = "fenced"
    default_remedy = "Another run has taken this training over; follow it with `trainwright status`."


class CorruptError(TrainwrightError):
    """Stored bytes are not what was sealed."""

    cause = "corrupt"
    exit_code = 6
    default_remedy = "Do not use it; restore the file from a copy, or run again to make a new one."


class OverBudget(TrainwrightError):
    """The run's budget is spent."""

    cause = "over_budget"
    exit_code = 7
    default_remedy = "Raise the budget and resume."


class UserCodeError(TrainwrightError):
    """The user's code raised; `user_traceback` holds its traceback."""

    cause = "user_code"
    exit_code = 8
    default_remedy = "Correct the code shown above and run again."


class OutOfMemory(UserCodeError):
    """A device or the machine ran out of memory."""

    cause = "out_of_memory"
    retry_key = "oom"
    default_remedy = "Lower train.micro_batch_size; the global batch stays the same."


class Diverged(UserCodeError):
    """The loss is not finite, or it jumped."""

    cause = "diverged"
    retry_key = "diverged"
    default_remedy = "Lower the learning rate, or look at the batches that are named."


class ApprovalPending(TrainwrightError):
    """The run waits for a person. Nothing holds a lease or a worker meanwhile."""

    cause = "waiting"
    exit_code = 9
    default_remedy = "Answer with `trainwright approve` or `trainwright refuse`, then resume the run."


class Cancelled(TrainwrightError):
    """A person cancelled the run; no process is left."""

    cause = "cancelled"
    exit_code = 130
    default_remedy = "Run `trainwright resume` to continue."


def _tree(root: type[TrainwrightError]) -> dict[str, type[TrainwrightError]]:
    classes = {root.cause: root}
    for child in root.__subclasses__():
        # A class outside this module that narrows one of ours and shares its cause does not replace it.
        classes = {**_tree(child), **classes}
    return classes


def causes() -> frozenset[str]:
    """Every cause of the tree."""
    return frozenset(_tree(TrainwrightError))


def from_json(answer: ErrorJson) -> TrainwrightError:
    """The error that `to_json` wrote, as an instance of its own class; an unknown cause is an internal error."""
    kind = _tree(TrainwrightError).get(answer.get("cause", ""), TrainwrightError)
    return kind(
        answer.get("message", "A child process failed and gave no reason."),
        remedy=answer.get("remedy"),
        user_traceback=answer.get("user_traceback", ""),
        details=answer.get("details"),
    )
