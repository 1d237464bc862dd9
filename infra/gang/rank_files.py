"""How a gang's processes reach each other on one machine: files in a node's scratch folder, variables, and codes.

The files by which a node's ranks and its supervisor communicate; only this module uses them:

    launch.json           the generation's launch, for the ranks
    key                   the key of the generation, for the codes of checkpoints
    stop                  written by the supervisor: save a checkpoint and end
    rank-<r>.json         how far the rank is; replaced as it trains
    rank-<r>.error.json   the error that ended it
    rank-<r>.done.json    its answer at the end
    pid-<r>.json          its process
    log-rank-<r>.txt      what it and its libraries print
    stack-rank-<r>.txt    its threads' stacks, if its log is withheld

Each JSON file is replaced whole, so that a reader sees the old content or the new.

The environment variables are those that a gang's processes pass to each other; no other code sets or reads them.
Variables that other processes get, too, are named lower down: PROJECT and LOG in `data_contracts.quoting`,
STORE_POINTERS in `infra.store.opening`, PARENT and MARK in `infra.processes`.

The codes stand on what a training's conductor and nodes write for each other: HMAC-SHA256 with keys that are not in the
store. Whoever can write to the store can write these files, too, but cannot make the codes.

    launches/<digest of store and training>    in the state folder: the keys with which this machine has launched the
                                               training, one a line, the newest last

From a training's key follows one for each generation, which its nodes get. Machines that share a secret, as those of
one Prefect server do, derive the same keys from it.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from data_contracts.canonical import digest
from data_contracts.errors import CorruptError, TrainwrightError, UsageError, from_json
from data_contracts.messages import Message
from data_contracts.messages.gang import Launch, RankAnswer, RankProcess, RankReport
from data_contracts.quoting import APPROVED
from infra.files import replace_json, replace_private
from infra.settings import approved_in_environment, on_this_machine, state_folder
from infra.store.opening import STORE_POINTERS
from infra.store.s3 import credentials_sent, database_password

# The file with the launch of this generation.
LAUNCH = "TRAINWRIGHT_LAUNCH"
# Address of the store, and the options to connect to it (JSON).
STORE = "TRAINWRIGHT_STORE"
STORE_OPTIONS = "TRAINWRIGHT_STORE_OPTIONS"
# The folder in which a node's ranks and its supervisor leave files for each other.
SCRATCH = "TRAINWRIGHT_SCRATCH"
# Local folder of the sealed dataset; "" with `data: external`.
DATASET = "TRAINWRIGHT_DATASET"
# The key of the generation, in hexadecimal (`Codes`). Only the supervisor gets it.
NODE_KEY = "TRAINWRIGHT_NODE_KEY"
# The address under which the other nodes reach this host.
ADDRESS = "TRAINWRIGHT_ADDRESS"
FIELD = "hmac"
T = TypeVar("T")
V = TypeVar("V", bound=Mapping[str, object])


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
        return _read(self._report, RankReport.from_json)

    def write_error(self, error: TrainwrightError) -> None:
        """Say why the rank ends; the first reason stays."""
        if not self._error.exists():
            replace_json(self._error, error.to_json())

    def error(self) -> TrainwrightError | None:
        """The error that ended the rank; None if it has not written one."""
        return _read(self._error, from_json)

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
        return _read(self._answer, RankAnswer.from_json)

    @property
    def is_done(self) -> bool:
        """Whether the rank wrote its answer."""
        return self._answer.exists()

    def write_process(self, pid: int) -> None:
        """Name the rank's process."""
        _write(self._process, RankProcess(rank=self.rank, pid=pid))

    def pid(self) -> int | None:
        """The rank's process; None if it has not begun."""
        process = _read(self._process, RankProcess.from_json)
        return None if process is None else process.pid


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


def _read(path: Path, parse: Callable[[Any], T]) -> T | None:
    text = _text(path)
    return None if text is None else parse(json.loads(text))


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def store_env(store_options: Mapping[str, object], pointers: str | None) -> dict[str, str]:
    """The variables for a node's store: its connection options, the database it may connect to, and what both get.

    The machine of this process has approved that, or it could not have opened the store.
    """
    fields, address = credentials_sent(store_options)
    approved = approved_in_environment() | ({address: list(fields)} if fields else {})
    if pointers:
        approved[pointers] = [*database_password(pointers), "env:PGPASSWORD"]
    named = {STORE_OPTIONS: json.dumps(dict(store_options)), APPROVED: json.dumps(approved)}
    return {**named, STORE_POINTERS: pointers} if pointers else named


def store_options(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The connection options that `store_env` wrote; {} if there are none."""
    return json.loads(environ.get(STORE_OPTIONS) or "{}")


@dataclass(frozen=True)
class Codes:
    """Writes and checks codes.

    Attributes:
        keys: a code made with any of them is right; new ones are made with the last. Without keys nothing is written or
            checked: so it is in a process that nobody gave a key.
    """

    keys: tuple[bytes, ...] = field(repr=False)

    def code(self, path: str, value: Mapping[str, object]) -> dict[str, str]:
        """The field with the code of a value as the record `path`; no field without keys."""
        return {FIELD: _code(self.keys[-1], path, value)} if self.keys else {}

    def coded(self, path: str, value: Mapping[str, object]) -> dict[str, object]:
        """The value with its code as the record `path`."""
        return {**value, **self.code(path, value)}

    def word(self) -> str:
        """What shows that a process has the newest key, as the value of a header."""
        return f"Bearer {hmac.digest(self.keys[-1], b'conductor', 'sha256').hex()}" if self.keys else ""

    def are_right(self, path: str, value: Mapping[str, object]) -> bool:
        """Whether a value has a right code as the record `path`."""
        own = str(value.get(FIELD, "")).encode()
        return any(hmac.compare_digest(_code(key, path, value).encode(), own) for key in self.keys)

    def checked(self, path: str, value: V) -> V:
        """The value; CorruptError if there are keys and none of them made its code."""
        if self.keys and not self.are_right(path, value):
            raise CorruptError(
                f"{path} does not carry the code of its launch: no process of this training wrote it.",
                remedy="Find out who can write to the store, delete the file and run again. If another machine has "
                'conducted the training meanwhile, see docs/threats.md, "Records of a training".',
                details={"file": path},
            )
        return value

    def checking(self, path: str, parse: Callable[[Any], T]) -> Callable[[Any], T]:
        """`parse`, after the code of the record `path` was checked."""
        return lambda value: parse(self.checked(path, value))


# Of a process that nobody gave a key.
NO_CODES = Codes(())


def codes_of_generation(store_uri: str, training: str, generation: int) -> Codes:
    """The codes of a generation that this machine launches."""
    return Codes((generation_key(launch_key(store_uri, training), generation),))


def launch_keys(store_uri: str, training: str) -> list[bytes]:
    """The keys with which this machine has launched a training, the newest last."""
    try:
        return [bytes.fromhex(line) for line in _file(store_uri, training).read_text().split()]
    except FileNotFoundError:
        return []


def launch_key(store_uri: str, training: str) -> bytes:
    """The newest key with which this machine has launched a training; a new one, which it remembers, if it has none."""
    return remember_key(store_uri, training, next_key(store_uri, training, None))


def next_key(store_uri: str, training: str, secret: bytes | None) -> bytes:
    """The key to conduct a training with; the conductor remembers it once it has taken the training over.

    Args:
        secret: of the machines that may conduct it; None: of this machine alone.
    """
    if secret is not None:
        return derived_key(secret, store_uri, training)
    return [secrets.token_bytes(32), *launch_keys(store_uri, training)][-1]


def remember_key(store_uri: str, training: str, key: bytes) -> bytes:
    """Remember a key as the newest of a training; returns it."""
    keys, path = launch_keys(store_uri, training), _file(store_uri, training)
    if keys[-1:] != [key]:
        with on_this_machine(path.parent):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            lines = [*(earlier.hex() for earlier in keys if earlier != key), key.hex()]
            replace_private(path, "".join(f"{line}\n" for line in lines))
    return key


def derived_key(secret: bytes, store_uri: str, training: str) -> bytes:
    """The key of a training that follows from a shared secret."""
    return hmac.digest(secret, f"{store_uri}\n{training}".encode(), "sha256")


def generation_key(key: bytes, generation: int) -> bytes:
    """The key of one generation, for its nodes."""
    return hmac.digest(key, f"generation {generation}".encode(), "sha256")


def _code(key: bytes, path: str, value: Mapping[str, object]) -> str:
    body = json.dumps([path, {name: part for name, part in value.items() if name != FIELD}], sort_keys=True)
    return hmac.digest(key, body.encode(), "sha256").hex()


def _file(store_uri: str, training: str) -> Path:
    return state_folder() / "launches" / digest([store_uri, training])[:40]
