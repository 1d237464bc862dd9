"""The files in a node's scratch folder by which its ranks and its supervisor communicate; only this module uses them.

    launch.json           the generation's launch, for the ranks
    key                   the key of the generation, for the codes of checkpoints; see `infra.gang.codes`
    stop                  written by the supervisor: save a checkpoint and end
    rank-<r>.json         how far the rank is; replaced as it trains
    rank-<r>.error.json   the error that ended it
    rank-<r>.done.json    its answer at the end
    pid-<r>.json          its process
    log-rank-<r>.txt      what it and its libraries print
    stack-rank-<r>.txt    its threads' stacks, if its log is withheld

Each JSON file is replaced whole, so that a reader sees the old content or the new.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from data_contracts.errors import TrainwrightError, UsageError, from_json
from data_contracts.messages.gang import Launch
from data_contracts.messages.message import Message
from data_contracts.messages.ranks import RankAnswer, RankProcess, RankReport
from infra.files.atomic import replace_json, replace_private
from infra.gang.codes import NO_CODES, Codes
from infra.gang.environment import LAUNCH


class RankFiles:
    """The files of one rank.

    Attributes:
        log: what the rank and its libraries print; a link if the text is withheld.
        stack: the stacks of a rank whose log is withheld.
    """

    def __init__(self, scratch: Path, rank: int) -> None:
        self.rank = rank
        self.log = scratch / f"log-rank-{rank}.txt"
        self.stack = scratch / f"stack-rank-{rank}.txt"
        self._report = scratch / f"rank-{rank}.json"
        self._error = scratch / f"rank-{rank}.error.json"
        self._answer = scratch / f"rank-{rank}.done.json"
        self._process = scratch / f"pid-{rank}.json"

    def write_report(self, report: RankReport) -> None:
        """Replace the report; by one thread at a time."""
        _write(self._report, report)

    def report(self) -> RankReport | None:
        """The rank's newest report; None if it has not written one."""
        text = _text(self._report)
        return None if text is None else RankReport.from_json(json.loads(text))

    def write_error(self, error: TrainwrightError) -> None:
        """Say why the rank ends; the first reason stays."""
        if not self._error.exists():
            replace_json(self._error, error.to_json())

    def error(self) -> TrainwrightError | None:
        """The error that ended the rank; None if it has not written one."""
        text = _text(self._error)
        return None if text is None else from_json(json.loads(text))

    @property
    def has_error(self) -> bool:
        """Whether the rank wrote its error."""
        return self._error.exists()

    @property
    def error_ns(self) -> int:
        """When the error was written, in nanoseconds since the epoch."""
        return self._error.stat().st_mtime_ns

    def write_answer(self, answer: RankAnswer) -> None:
        """Answer that the rank is done."""
        _write(self._answer, answer)

    def answer(self) -> RankAnswer | None:
        """The rank's answer at its end; None if it has not written one."""
        text = _text(self._answer)
        return None if text is None else RankAnswer.from_json(json.loads(text))

    @property
    def is_done(self) -> bool:
        """Whether the rank wrote its answer."""
        return self._answer.exists()

    def write_process(self, pid: int) -> None:
        """Name the rank's process."""
        _write(self._process, RankProcess(rank=self.rank, pid=pid))

    def pid(self) -> int | None:
        """The rank's process; None if it has not begun."""
        text = _text(self._process)
        return None if text is None else RankProcess.from_json(json.loads(text)).pid


def stop_file(scratch: Path) -> Path:
    """The file that asks the ranks to save a checkpoint and end."""
    return scratch / "stop"


def write_launch(scratch: Path, launch: Launch) -> Path:
    """Write the launch for the ranks; returns its file."""
    path = scratch / "launch.json"
    _write(path, launch)
    return path


def read_launch(environ: Mapping[str, str] = os.environ) -> Launch:
    """The launch that LAUNCH names; TrainwrightError if it cannot be read, because our own supervisor wrote it."""
    try:
        return Launch.from_json(json.loads(Path(environ[LAUNCH]).read_text()))
    except UsageError as error:
        raise TrainwrightError(f"The launch file cannot be read: {error.message}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise TrainwrightError(f"The launch file cannot be read: {where}: {first['msg']}.") from error


def write_key(scratch: Path, codes: Codes) -> None:
    """Write the key of the generation for the ranks; not into their environment, which users' code may print."""
    replace_private(scratch / "key", "".join(key.hex() for key in codes.keys))


def read_codes(scratch: Path) -> Codes:
    """The codes of the generation, as the supervisor knows them."""
    key = _text(scratch / "key")
    return Codes((bytes.fromhex(key),)) if key else NO_CODES


def _write(path: Path, message: Message) -> None:
    replace_json(path, message.to_json())


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
