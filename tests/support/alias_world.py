"""Eight actors at one alias, and what must hold of it at every moment.

The world asks actors (`alias_actors.py`) to promote, roll back and release, decides between any two of their requests
which one continues and what becomes of a request, and looks at the alias after each step. So a sequence of steps can
be repeated exactly.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

from data_contracts.approvals import Answer, Question
from data_contracts.errors import CorruptError
from data_contracts.handoffs import Checkpoint, Receipt, Ref
from infra.approvals import signing_key
from infra.models import registry
from infra.records.receipts import chain, holds_after, is_rollback, read_receipt
from infra.signing.keys import PRIVATE_FILE, PUBLIC_FILE, PublicKey, load_public_key
from infra.signing.signatures import verify_receipt
from infra.store import Manifest, Store, layout, open_store
from infra.store.database import Names
from tasks.queries.proof import signed_history
from tasks.stages.approval import protect
from tests.support.alias_actors import ALIAS, MODEL, Act, Place, carried_out, evaluation
from tests.support.postgres import PASSWORD, PASSWORD_IN
from tests.support.s3 import CREDENTIALS
from tests.support.scripted_nodes import seal

ACTORS, CHECKPOINTS, DAMAGED = 8, 5, 4
# Close together: a resumed run looks back to a day before its start, and an act may be under way for long.
BEGAN, APART = datetime(2026, 1, 1, tzinfo=UTC), timedelta(minutes=5)
END_S = 480
Steps = int | str
ROOT = Path(__file__).parents[2]


class Actors:
    """Eight processes, and as many more as are killed."""

    def __init__(self) -> None:
        self._sender, theirs = socket.socketpair()
        command = [sys.executable, "-c", "from tests.support.alias_actors import nursery; nursery()"]
        self._nursery = subprocess.Popen(
            command, stdin=theirs, cwd=ROOT, env={**os.environ, **CREDENTIALS, PASSWORD_IN: PASSWORD}
        )
        theirs.close()
        self._living: dict[int, tuple[Connection, int]] = {}

    def connection(self, number: int) -> Connection:
        """The connection to an actor, which is started if it is not there."""
        if number not in self._living:
            ours, theirs = socket.socketpair()
            socket.send_fds(self._sender, [b"."], [theirs.fileno()])
            theirs.close()
            connection = Connection(ours.detach())
            self._living[number] = (connection, received(connection))
        return self._living[number][0]

    def kill(self, number: int) -> None:
        """SIGKILL an actor."""
        if number in self._living:
            connection, pid = self._living.pop(number)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            connection.close()

    def stop(self) -> None:
        """End them all."""
        for number in list(self._living):
            self.kill(number)
        self._sender.close()
        self._nursery.wait(480)


@contextlib.contextmanager
def place(kind: str, options: dict[str, Any] | None = None, bucket: str = "", database: str = "") -> Iterator[Place]:
    """A new store of a kind; its files lie in memory where they can, to wait for no disk.

    `names` and `postgres` are a folder that ignores conditions, with its names in SQLite or PostgreSQL.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="trainwright-alias-", dir=memory) as folder:
        made = {
            "folder": Place("folder", f"{folder}/store", {}),
            "s3": Place("s3", f"s3://{bucket}/{Path(folder).name}", options or {}),
            "names": Place("names", f"{folder}/objects", {}, f"sqlite:///{folder}/names.db"),
            "postgres": Place("postgres", f"{folder}/objects", {}, database),
        }[kind]
        if made.database:
            Names(made.database, made.uri).prepare()
        else:
            open_store(made.uri, made.options)
        yield made


def received(connection: Connection) -> Any:
    """The next message of an actor; EOFError if it was killed."""
    assert connection.poll(END_S), "an actor says nothing"
    return connection.recv()


@dataclass
class Doing:
    """An act on its way. `at` is the request before which its actor stands, and its kind."""

    act: Act
    at: tuple[str, str] = ("", "read")


class World:
    """A store with five checkpoints, one of them damaged, two versions, and what was made of them.

    Attributes:
        told: what each act was told, by its run: `moved`, `not moved`, `unknown`, or `killed`.
        keys: a folder with two pairs of keys, if moves are signed and answers must be; "" if nothing is signed.
    """

    def __init__(self, place: Place, actors: Actors, *, protected: bool = False, keys: str = "") -> None:
        self.protected, self.keys = protected, keys
        self.place, self.actors = place, actors
        self.store = place.open()
        self.checkpoints = [seal(self.store, n) for n in range(CHECKPOINTS)]
        _damage(self.store, self.checkpoints[DAMAGED])
        for n in (0, DAMAGED):  # the second could be gone back to by its number
            registry.write_version(self.store, MODEL, self.checkpoints[n], evaluation(n).ref, {}, {})
        if protected:
            self._protect()
        self.chain: list[Manifest] = []
        self.held: set[str] = set()
        self.doing: dict[int, Doing] = {}
        self.acts: dict[str, Act] = {}
        self.told: dict[str, str] = {}
        self._attempts = 0
        self._opened: set[int] = set()
        self.counts: Counter[str] = Counter()

    def _protect(self) -> None:
        if not self.keys:
            protect(self.store, MODEL, ALIAS, "ann", "it is served")
            return
        pem = Path(self.keys, "approver", PUBLIC_FILE).read_text()
        key = signing_key(f"{self.keys}/release/{PRIVATE_FILE}")
        protect(self.store, MODEL, ALIAS, "ann", "it is served", [pem], key)

    # What actors do.

    def begin(self, number: int, what: str, *, steps: Steps = 0, **about: Any) -> None:
        """Let an idle actor begin an act; see `go`."""
        if number not in self.doing:
            self._begin(number, self.act(what, **about), steps)

    def again(self, number: int, which: int, *, steps: Steps = 0) -> None:
        """Let an idle actor carry out an earlier run again, as after a kill or beside another attempt."""
        if (runs := self._latest()) and number not in self.doing:
            self._begin(number, self.attempt(runs[which % len(runs)]), steps)

    def answer(self, number: int, what: str, which: int, *, steps: Steps = 0) -> None:
        """Let an idle actor approve or refuse an earlier run; it need not wait for an answer."""
        if runs := self._latest():
            self.begin(number, what, steps=steps, of=runs[which % len(runs)].run_id)

    def _latest(self) -> list[Act]:
        """The latest runs, of which some wait for an answer."""
        return [one for one in self.acts.values() if one.what == "promote"][-6:]

    def act(self, what: str, **about: Any) -> Act:
        """A new act, by a run of its own."""
        return self.attempt(Act(what, f"{what}-{len(self.acts)}", self._time(), "", keys=self.keys, **about))

    def attempt(self, act: Act) -> Act:
        """The act, tried now."""
        self._attempts += 1
        self.acts[act.run_id] = act = replace(act, at=self._time())
        return act

    def _time(self) -> str:
        return (BEGAN + self._attempts * APART).isoformat()

    def _begin(self, number: int, act: Act, steps: Steps) -> None:
        connection = self._fresh(number)
        self.doing[number] = Doing(act)
        connection.send(("act", act, *_asked(steps)))
        self._hear(number)

    def go(self, number: int, steps: Steps) -> None:
        """Let an actor send so many requests, or all up to its next `write` or its next `move` of the alias."""
        if number in self.doing:
            connection = self.actors.connection(number)
            connection.send(("go", *_asked(steps)))
            self._hear(number)

    def fate(self, number: int, what: str) -> None:
        """What becomes of the request before which an actor stands."""
        if number not in self.doing:
            return
        doing = self.doing[number]
        self.counts[f"{what}: {doing.at[1]}"] += 1
        connection = self.actors.connection(number)
        if what != "killed":
            connection.send((what,))
        if what == "killed after":
            assert received(connection) == ("sent",)
        if what.startswith("killed"):
            self._killed(number)
        else:
            self._hear(number)

    def deliver(self, number: int) -> None:
        """Let the late requests of an actor arrive now."""
        if number in self._opened:
            connection = self.actors.connection(number)
            connection.send(("deliver",))
            assert received(connection) == ("delivered",)
            self.look()

    def _fresh(self, number: int) -> Connection:
        connection = self.actors.connection(number)
        if number not in self._opened:
            connection.send(("open", self.place))
            self._opened.add(number)
        return connection

    def _killed(self, number: int) -> None:
        self.actors.kill(number)
        self._opened.discard(number)
        self.tell(self.doing.pop(number).act, "killed")
        self.look()

    def _hear(self, number: int) -> None:
        word = received(self.actors.connection(number))
        if word[0] == "at":
            self.doing[number].at = word[1:]
        else:
            assert word[0] == "told", word
            self.tell(self.doing.pop(number).act, *word[1:])
        self.look()

    def tell(self, act: Act, word: str, sentence: str = "") -> None:
        self.counts[f"{act.what}: {word}"] += 1
        before = self.told.get(act.run_id)
        # An attempt that was refused says nothing of another attempt of the same run, which may have moved the alias.
        self.told[act.run_id] = (
            word if before in (None, "not moved") else before if before == "moved" else _of(before, word)
        )

    # What must hold.

    def look(self) -> None:
        """The alias now: one whole version, and a history that continues the one that was seen before."""
        found = registry.read_alias(self.store, MODEL, ALIAS)
        pointer, number = found or (None, None)
        last = self.chain[-1].ref if self.chain else None
        newest = None if pointer is None else Ref.model_validate(pointer.value["receipt"])
        new = list(takewhile(lambda one: one.ref != last, chain(self.store, newest, self.store.verify)))[::-1]
        assert (pointer.version if pointer else 0) == len(self.chain) + len(new), "the history is not a line"
        for manifest in new:
            self._moved(manifest)
        if self.chain:
            assert read_receipt(self.store, self.chain[-1]).version == number

    def _moved(self, manifest: Manifest) -> None:
        """One more receipt in the history: what it says is true, and was allowed."""
        receipt, before = read_receipt(self.store, manifest), self._now()
        run_id = manifest.provenance["run_id"]
        assert run_id not in {one.provenance["run_id"] for one in self.chain}, f"{run_id} moved the alias twice"
        assert receipt.previous == before
        assert receipt.candidate is not None
        version = registry.model_version(self.store, receipt.candidate)
        assert (version.version, version.name) == (receipt.version, MODEL)
        self.store.verify(version.checkpoint.ref)
        assert version.checkpoint.ref.id != self.checkpoints[DAMAGED].ref.id, "a damaged checkpoint is the champion"
        checkpoint, act = version.checkpoint.ref.id, self.acts[run_id]
        held = {one.checkpoint_id for one in holds_after(self.store, manifest.ref)}
        if act.what == "promote":
            assert act.force or checkpoint not in self.held, "a checkpoint on hold was promoted"
            assert held == self.held - {checkpoint}
            assert not self.protected or self._approved(run_id, receipt), "it was promoted without an approval"
        elif act.what == "back":
            assert is_rollback(receipt)
            assert receipt.champion is not None
            left = registry.model_version(self.store, receipt.champion).checkpoint.ref.id
            assert act.version is not None or checkpoint not in self.held, "went back to a checkpoint on hold"
            assert held == (self.held | {left}) - {checkpoint}
        else:
            assert receipt.version == before
            assert len(self.held - held) == 1
            assert held < self.held
        self.held = held
        if self.keys:
            signed = verify_receipt(self.store, manifest, [self._release])
            assert (signed.number, signed.previous_signed) == (len(self.chain) + 1, bool(self.chain))
        self.chain.append(manifest)

    @property
    def _release(self) -> PublicKey:
        return load_public_key(f"{self.keys}/release/{PUBLIC_FILE}")

    def _approved(self, run_id: str, receipt: Receipt) -> bool:
        """Whether a person approved just this promotion: this run's, of these weights, in this state of the alias."""
        assert receipt.candidate is not None
        question = self.store.read_as(layout.question(run_id, receipt.approval.n), Question.from_json)
        answered = self.store.read_as(layout.answer(run_id, question.n), Answer.from_json)
        candidate = registry.model_version(self.store, receipt.candidate).checkpoint.ref
        assert question.state == (self.chain[-1].seal if self.chain else ""), "the alias was moved since it was asked"
        assert bool(receipt.approval.keys) == bool(self.keys)
        asked = (question.run_id, question.champion, question.candidate)
        given = (answered.question, answered.decision, answered.by)
        assert self.acts[answered.by].of == run_id
        return asked == (run_id, receipt.champion, candidate) and given == (
            question.digest, "approved", receipt.approval.by,
        )  # fmt: skip

    def _now(self) -> int | None:
        return read_receipt(self.store, self.chain[-1]).version if self.chain else None

    def end(self) -> None:
        """Let all finish and all that is late arrive; then what was told is compared with what is so."""
        for number in list(self.doing):
            self.go(number, 10**9)
            assert number not in self.doing, self.doing[number]
        for number in range(ACTORS):
            self.deliver(number)
        self.compare()
        self.recovers()
        self.compare()
        if self.keys and (now := self._now()) is not None:
            version = registry.read_version(self.store, MODEL, now)
            proven, _ = signed_history(self.store, version, ALIAS, [self._release])
            assert (proven.receipts, proven.before) == (len(self.chain), 0)

    def compare(self) -> None:
        """Whoever was told that the alias moved is in the history, whoever was told that it did not is not."""
        moved = {one.provenance["run_id"] for one in self.chain} | set(self._answers())
        for run_id, word in self.told.items():
            assert word != "moved" or run_id in moved, f"{run_id} was told that it was done"
            assert word != "not moved" or run_id not in moved, f"{run_id} was told that it was not done"
        again = [one.provenance["run_id"] for one in chain(self.store, self.chain[-1].ref if self.chain else None)]
        assert again[::-1] == [one.provenance["run_id"] for one in self.chain]

    def _answers(self) -> list[str]:
        """Whoever gave an answer that counts: one for each question at most."""
        by = []
        for run_id in self.acts:
            for n in self.store.list(layout.approvals(run_id)):
                found = self.store.find_as(layout.answer(run_id, int(n)), Answer.from_json)
                by += [found.by] if found is not None and found.via == "cli" else []
        return by

    def recovers(self) -> None:
        """Runs that were cut off are resumed, then the alias is moved back and forward once more."""
        for act in [self.acts[run_id] for run_id, word in self.told.items() if word in ("killed", "unknown")]:
            if act.what == "promote":
                self._plainly(self.attempt(act))
        good = [n for n in range(CHECKPOINTS) if n != DAMAGED]
        now = self._now()
        standing = None if now is None else registry.read_version(self.store, MODEL, now).checkpoint.ref.id
        other = next(self.checkpoints[n] for n in good if self.checkpoints[n].ref.id != standing)
        last = self.act("promote", checkpoint=other, force=True)
        word, sentence = self._plainly(last)
        if self.protected:
            assert (word, "must approve" in sentence) == ("not moved", True), sentence
            assert self._plainly(self.act("approve", of=last.run_id))[0] == "moved"
            assert self._plainly(self.act("refuse", of=last.run_id))[0] == "not moved"
            word, sentence = self._plainly(self.attempt(last))
        assert word == "moved", sentence
        if now is not None:
            assert self._plainly(self.act("back", version=now))[0] == "moved"
            assert self._now() == now

    def _plainly(self, act: Act) -> tuple[str, str]:
        with mock.patch.dict(os.environ):
            told = carried_out(self.store, act)
        self.tell(act, *told)
        self.look()
        return told


def _asked(steps: Steps) -> tuple[int, str]:
    return (steps, "") if isinstance(steps, int) else (10**9, steps)


def _of(before: str, word: str) -> str:
    """What is known of a run that was cut off before and has been told `word` now."""
    return "moved" if word == "moved" else before


def _damage(store: Store, checkpoint: Checkpoint) -> None:
    path = f"{checkpoint.ref.uri}/state.json"
    store.forget(path)
    store.create(path, b"damaged")
    with contextlib.suppress(CorruptError):
        store.verify(checkpoint.ref)
        raise AssertionError("it is not damaged")
