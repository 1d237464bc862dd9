"""Whether this process was asked to stop. A library may lose a signal's exception; this record is never lost."""

from __future__ import annotations

import os

from data_contracts.errors import Preempted

# Names the file that a worker of ours makes when it is stopped as planned (`infra.orchestrator.worker`).
STOP_FILE = "TRAINWRIGHT_STOP_FILE"
# Numbers of the received signals, in order; signal handlers add them here.
received: list[int] = []


class HandedOver(Preempted):
    """The worker of this process is stopped as planned: another process carries the run out from here.

    Not a failure: it uses up no budget, and nobody is told.
    """

    default_remedy = ""


def is_planned() -> bool:
    """Whether the worker that started this process is being stopped as planned, for example for an upgrade."""
    path = os.environ.get(STOP_FILE)
    return path is not None and os.path.exists(path)


def handed_over() -> HandedOver | None:
    """The error with which this process ends its work if its worker is stopped as planned; else None."""
    return HandedOver("The worker was stopped as planned; another one carries the run out.") if is_planned() else None


def check_signals() -> None:
    """Raise KeyboardInterrupt if a signal was received."""
    if received:
        raise KeyboardInterrupt


def check() -> None:
    """Raise KeyboardInterrupt if a signal was received, HandedOver if the worker of this process is being stopped.

    Call this where work begins and while waiting for it.
    """
    check_signals()
    if (error := handed_over()) is not None:
        raise error
