"""Processes that promote, roll back and release one alias, and can be stopped between any two requests to the store.

`nursery`, in a process of its own, imports what they need, starts no thread, and forks an actor for each socket that
it is sent. An actor carries out what is asked of it with the product's own code; only the scores are given. With
`turns`, it stops before a request and says which one; the other side lets it go on, loses its answer, delays the
request or kills the actor. Without, it draws all of this itself and runs freely.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from data_contracts.errors import StorageUnavailable, TrainwrightError
from data_contracts.handoffs import Checkpoint, Evaluation, Ref
from data_contracts.resolved import Resolved
from infra.approvals import signing_key
from infra.processes.environment import SIGNING_KEY
from infra.signing.keys import PRIVATE_FILE
from infra.signing.signatures import configured_key, sign_inputs
from infra.store import Store, layout
from infra.store.database import NamedBackend, Names
from infra.store.folder import FolderBackend
from infra.store.s3 import S3Backend
from tasks.run.run import Run
from tasks.stages import promote as promote_stage
from tasks.stages.approval import answer, open_question
from tasks.stages.rollback import release, rollback
from tests.support.approved import approve_here
from tests.support.careless import Careless
from tests.support.postgres import PASSWORD_IN

MODEL, ALIAS = "m", "champion"
POINTER = layout.alias(MODEL, ALIAS)
WRITES = {
    "create", "create_file", "create_from", "replace", "delete", "drop",
    "draft", "give", "swap", "take", "doom", "forget",
    "pipe_file", "put_file", "put_object",
}  # fmt: skip
# What may happen to a request beside being answered: carried out unanswered, never, or later; killed before or after.
FATES = ("lost", "never", "late", "killed", "killed after")


@dataclass(frozen=True)
class Place:
    """Where a store is: a folder, a prefix on S3, or a folder that ignores conditions with its names in a database.

    The kind is `folder`, `s3`, `names` (SQLite) or `postgres`.
    """

    kind: str
    uri: str
    options: dict[str, Any]
    database: str = ""

    def open(self, turns: Turns | None = None) -> Store:
        """The store; each of its requests goes through `turns`."""
        if self.kind == "folder":
            return Store(_turned(FolderBackend(Path(self.uri)), turns, _unanswered), {}, schema=3)
        if self.kind == "s3":
            approve_here(self.options["endpoint_url"])
            backend = S3Backend(self.uri, self.options)
            if turns is not None:
                backend._filesystem, backend._owner_pid = _turned(backend._fs, turns, _disconnected), os.getpid()
            return Store(backend, self.options, schema=3)
        if self.kind == "postgres":
            approve_here(self.database, f"env:{PASSWORD_IN}")
        objects = _turned(Careless(Path(self.uri)), turns, _unanswered)
        return Store(NamedBackend(objects, _turned(Names(self.database, self.uri), turns, _unanswered)), {}, schema=3)


def _unanswered() -> Exception:
    return StorageUnavailable("The store did not answer.")


def _disconnected() -> Exception:
    from botocore.exceptions import ConnectionClosedError

    return ConnectionClosedError(endpoint_url="http://127.0.0.1")


class Turns:
    """What is asked of this actor's next requests, by the other side of a connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.left = 0
        self.until = ""
        self.late: list[Callable[[], Any]] = []

    def request(self, name: str, kind: str, work: Callable[[], Any], lost: Callable[[], Exception]) -> Any:
        """Carry out a request as the other side says; `kind` is `read`, `write`, or `move` for the alias itself."""
        if self.left and (not self.until or kind not in ("move", self.until)):
            self.left -= 1
            return work()
        self.connection.send(("at", name, kind))
        match self.told():
            case ("go", steps, until):
                self.left, self.until = steps - 1, until
                return work()
            case ("lost",):
                self.left = 0
                with contextlib.suppress(Exception):  # which is the answer that is lost
                    work()
            case ("late",):
                self.left = 0
                self.late.append(work)
            case ("never",):
                self.left = 0
            case ("killed after",):
                with contextlib.suppress(Exception):
                    work()
                self.connection.send(("sent",))
                signal.pause()
        raise lost()

    def told(self) -> tuple[Any, ...]:
        """The next word of the other side; requests that were late are delivered when it says so."""
        while True:
            try:
                word = self.connection.recv()
            except EOFError:
                os._exit(0)
            if word != ("deliver",):
                return word
            self.deliver()
            self.connection.send(("delivered",))

    def deliver(self) -> None:
        """Carry out the requests that were late, whose answers nobody hears."""
        for work in self.late:
            with contextlib.suppress(Exception):
                work()
        self.late.clear()


class _Turned:
    def __init__(self, inner: Any, turns: Turns, lost: Callable[[], Exception]) -> None:
        self._inner, self._turns, self._lost = inner, turns, lost

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found) or name in ("sweep", "local"):
            return found

        def called(*args: Any, **kwargs: Any) -> Any:
            request, path = (args[0], kwargs.get("Key")) if name == "call_s3" else (name, args[0] if args else "")
            kind = "read" if request not in WRITES else "move" if str(path).endswith(POINTER) else "write"
            return self._turns.request(request, kind, lambda: found(*args, **kwargs), self._lost)

        return called


def _turned(inner: Any, turns: Turns | None, lost: Callable[[], Exception]) -> Any:
    return inner if turns is None else _Turned(inner, turns, lost)


@dataclass(frozen=True)
class Act:
    """What a person or a run does: `promote`, go `back` to a version, `release` one from hold, `approve` or `refuse`.

    Attributes:
        of: the run that is approved or refused; `run_id` is then the name of whoever answers.
        began, at: when the run began, and when this attempt at it was made.
        keys: a folder with the keys of the releases and of an approver; "" if nothing is signed.
    """

    what: str
    run_id: str
    began: str
    at: str
    checkpoint: Checkpoint | None = None
    version: int | None = None
    force: bool = False
    of: str = ""
    keys: str = ""


def carried_out(store: Store, act: Act) -> tuple[str, str]:
    """What the product says of an act: (`moved`, `not moved` or `unknown`; its sentence).

    An answer has `moved` if it is the one that counts.
    """
    about = {"run_id": act.run_id, "actor": "ann", "trigger": "cli", "started": act.began, "finished": act.at}
    os.environ.pop(SIGNING_KEY, None)
    if act.keys:
        os.environ[SIGNING_KEY] = f"{act.keys}/release/{PRIVATE_FILE}"
    try:
        match act.what:
            case "promote":
                return _promoted(store, act, about)
            case "back":
                made = rollback(store, MODEL, ALIAS, act.version, about, "it fell")
            case "approve" | "refuse":
                decision = "approved" if act.what == "approve" else "refused"
                key = signing_key(f"{act.keys}/approver/{PRIVATE_FILE}") if act.keys else None
                given = answer(store, open_question(store, act.of), decision, act.run_id, "looked at", key)
                return "moved", f"question of {given.question}"
            case _:
                made = release(store, MODEL, ALIAS, act.version, "it was wrong", about)
        return "moved", made.sentence
    except StorageUnavailable as error:
        unclear = "unknown" in error.message or act.what in ("approve", "refuse")
        return "unknown" if unclear else "not moved", error.message
    except TrainwrightError as error:
        return "not moved", f"{type(error).__name__}: {error.message}"


class _ActorRun(Run):
    """A run whose results carry the times of the world, and no recipe, which takes a second to collect."""

    about: dict[str, Any]

    def provenance(self, *parents: Ref | None, started: str | None = None) -> dict[str, Any]:
        return {**self.about, "parents": []}

    def with_recipe(self, provenance: dict[str, Any]) -> dict[str, Any]:
        return provenance


@functools.cache
def _resolved() -> dict[str, Any]:
    """The inputs of a run, as stored, whose spec promotes whatever it trains."""
    golden = json.loads((Path(__file__).parents[1] / "golden" / "handoffs-v1.json").read_text())["Resolved"]
    return {
        **golden,
        "actor": "ann",
        "trigger": "cli",
        "spec": {**golden["spec"], "promote": {"model": MODEL, "alias": ALIAS}},
    }


def _promoted(store: Store, act: Act, about: dict[str, Any]) -> tuple[str, str]:
    store.verify(act.checkpoint.ref)  # as the verify stage does
    checkpoint = act.checkpoint.model_copy(update={"state": "verified"})
    run = _ActorRun(Resolved.from_json({**_resolved(), "run_id": act.run_id, "started": act.began}), store)
    object.__setattr__(run, "about", about)
    if (release := configured_key()) is not None:
        sign_inputs(store, run.resolved, release)
    promote_stage.comparable = lambda run, mine, score, *_: (score, score)  # type: ignore[attr-defined]
    score = evaluation(checkpoint.step)
    done = promote_stage.promote.find_or_make(run, checkpoint, None, score, "it is right" if act.force else None)
    return ("not moved" if done.handoff.decision == "unchanged" else "moved"), done.sentence


def evaluation(n: int) -> Evaluation:
    """The scores of a checkpoint, which decide nothing here."""
    ref = {"uri": f"evaluations/e-{n}", "id": f"{n:064x}", "seal": f"{n:064x}"}
    return Evaluation.model_validate({"ref": ref, "key": "k", "checkpoint_id": "", "dataset_ids": {}, "metrics": {}})


def act_for(connection: Connection) -> None:
    """Be an actor until the other side hangs up."""
    turns = Turns(connection)
    store: Store | None = None
    while True:
        match turns.told():
            case ("open", place):
                turns = Turns(connection)
                store = place.open(turns)
            case ("act", act, left, until):
                assert store is not None
                turns.left, turns.until = left, until
                connection.send(("told", *carried_out(store, act)))


def nursery() -> None:
    """Fork an actor for each socket that arrives on standard input."""
    import botocore.session  # noqa: F401
    import s3fs  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    sender = socket.socket(fileno=os.dup(0))
    while True:
        data, descriptors, _, _ = socket.recv_fds(sender, 1, 1)
        if not data:
            return
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            sender.close()
            connection = Connection(descriptors[0])
            connection.send(os.getpid())
            try:
                act_for(connection)
            except BaseException:
                import traceback

                traceback.print_exc()
            os._exit(1)
        os.close(descriptors[0])
