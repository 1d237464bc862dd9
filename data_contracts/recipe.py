"""The recipe of a model: everything that decides it besides its code and data. `trainwright reproduce` reads it.

It is sealed under `recipes/` by the run that launches a training or makes a version, whose provenance names it.
"""

from __future__ import annotations

from data_contracts.records import HandOff, Record
from data_contracts.resolved import Resolved


class OwnRevision(Record):
    """The Trainwright that ran.

    Attributes:
        source: BLAKE3 over its own modules, the 64 hexadecimal digits.
        revision, dirty: its Git commit, and whether its files differ from it; None outside of Git.
    """

    source: str
    revision: str | None = None
    dirty: bool = False


class Recipe(HandOff):
    """Everything that decides a run's results besides code and data.

    Attributes:
        resolved: the run's inputs.
        lock: `name==version` of every installed distribution, sorted. Its digest is `resolved.lock_digest`.
        python: the version of the interpreter.
    """

    resolved: Resolved
    lock: list[str]
    python: str
    trainwright: OwnRevision
