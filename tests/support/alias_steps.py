"""Sequences of steps at one alias, drawn from a seed: `python -m tests.support.alias_steps KIND FIRST [LAST]`.

The kinds are `folder`, `s3`, `names`, and `postgres`: a place that ignores conditions, with its names in SQLite or
PostgreSQL; `signed` is a folder whose moves and answers are signed. A seed gives the same steps each time. `free` lets
the actors run as they like instead, beside a process that reads the alias all the time.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from infra.signing.keys import make_key_pair
from infra.store import open_store
from infra.store.database import Names
from tests.support.alias_actors import FATES, Act, Place
from tests.support.alias_world import ACTORS, CHECKPOINTS, END_S, Actors, Steps, World, received
from tests.support.postgres import Postgres
from tests.support.s3 import S3Server

ANSWERS = {False: [], True: ["again", "again", "approve", "approve", "refuse"]}
# A step costs more on a server.
STEPS = {"folder": 60, "names": 40, "s3": 25, "postgres": 15, "signed": 40}


@contextlib.contextmanager
def place(kind: str, options: dict[str, Any] | None = None, bucket: str = "", database: str = "") -> Iterator[Place]:
    """A new store of a kind; its files lie in memory where they can, to wait for no disk."""
    kind = "folder" if kind == "signed" else kind
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="trainwright-alias-", dir=memory) as folder:
        made = {
            "folder": Place("folder", f"{folder}/store", {}),
            "s3": Place("s3", f"s3://{bucket}/{Path(folder).name}", options or {}),
            "names": Place("names", f"{folder}/objects", {}, f"sqlite:///{folder}/names.db"),
            "postgres": Place("postgres", f"{folder}/objects", {}, database),
        }[kind]
        if kind in ("names", "postgres"):
            Names(made.database, made.uri).prepare()
        else:
            open_store(made.uri, made.options)
        yield made


def stepped(world: World, draw: random.Random, steps: int) -> None:
    """Take steps that `draw` chooses, then end."""
    for _ in range(steps):
        number, what = draw.randrange(ACTORS), draw.random()
        ahead: Steps = draw.choice(["write", "move", "move", 1, draw.randint(1, 60)])
        if number not in world.doing and world.protected and draw.random() < 0.4:
            world.answer(number, draw.choice(["approve", "approve", "refuse"]), draw.randrange(100), steps=ahead)
        elif number not in world.doing:
            kind = draw.random() if not world.protected else draw.choice([0.3, 0.55, 0.7, 0.9])
            if kind < 0.5:
                checkpoint = world.checkpoints[draw.randrange(CHECKPOINTS)]
                world.begin(number, "promote", steps=ahead, checkpoint=checkpoint, force=draw.random() < 0.2)
            elif kind < 0.6:
                world.again(number, draw.randrange(100), steps=ahead)
            elif kind < 0.85:
                world.begin(number, "back", steps=ahead, version=draw.choice([None, None, 1, 2, draw.randint(1, 9)]))
            else:
                world.begin(number, "release", steps=ahead, version=draw.choice([None, draw.randint(1, 9)]))
        elif what < 0.55:
            world.go(number, ahead)
        elif what < 0.9:
            world.fate(number, draw.choice(FATES))
        else:
            world.deliver(number)
    world.end()


def free(world: World, seed: int, acts: int) -> int:
    """Eight actors run `acts` acts each as they like, beside a reader; how often the reader saw the alias move."""
    draw, left = random.Random(seed), dict.fromkeys(range(ACTORS), acts)
    reader = world.actors.connection(ACTORS)
    reader.send(("poll", world.place))
    doing: dict[Connection, tuple[int, Act]] = {}
    while any(left.values()) or doing:
        busy = {one for one, _ in doing.values()}
        for number in [one for one in left if left[one] and one not in busy]:
            left[number] -= 1
            doing[_freely(world, number, f"{seed}.{number}.{left[number]}")] = (number, act := _drawn(world, draw))
            world.actors.connection(number).send(("act", act, 0, ""))
        for connection in wait(list(doing), END_S):
            number, act = doing.pop(connection)
            try:
                word = connection.recv()
            except EOFError:
                world.actors.kill(number)
                word = ("told", "killed")
            world.tell(act, *word[1:])
            if word[1] != "killed":
                connection.send(("deliver",))
                assert received(connection) == ("delivered",)
    reader.send("enough")
    seen = received(reader)[1]
    world.look()
    seals = [one.seal for one in world.chain]
    assert [version for version, _, _ in seen] == sorted({version for version, _, _ in seen})
    assert all(seals[version - 1] == seal for version, seal, _ in seen), "the reader saw what is not in the history"
    world.end()
    return len(seen)


def _freely(world: World, number: int, seed: str) -> Connection:
    connection = world.actors.connection(number)
    connection.send(("open", world.place, seed, 0.05))
    return connection


def _drawn(world: World, draw: random.Random) -> Act:
    what = draw.choice(["promote", "promote", "promote", "again", "back", "back", "release", *ANSWERS[world.protected]])
    earlier = [one for one in world.acts.values() if one.what == "promote"]
    if what in ("approve", "refuse") and earlier:
        return world.act(what, of=draw.choice(earlier).run_id)
    if what == "again" and earlier:
        return world.attempt(draw.choice(earlier))
    if what not in ("back", "release"):
        checkpoint = world.checkpoints[draw.randrange(CHECKPOINTS)]
        return world.act("promote", checkpoint=checkpoint, force=draw.random() < 0.2)
    return world.act(what, version=draw.choice([None, None, 1, 2, draw.randint(1, 9)]))


def seeded(kind: str, seeds: range, actors: Actors, server: S3Server | None = None, database: str = "") -> Counter[str]:
    """Carry out the steps of each seed in a store of its own; what was told and what befell requests, counted."""
    counts: Counter[str] = Counter()
    bucket, options = (server.bucket(), server.options) if server is not None else ("", None)
    for seed in seeds:
        with place(kind, options, bucket, database) as there, _named(kind, seed), _keys(kind) as keys:
            world = World(there, actors, protected=seed % 3 == 0, keys=keys)
            stepped(world, random.Random(seed), STEPS[kind])
        counts += world.counts
    return counts


@contextlib.contextmanager
def _keys(kind: str) -> Iterator[str]:
    """A folder with new keys of the releases and of an approver, if the kind is `signed`."""
    if kind != "signed":
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="trainwright-keys-") as folder:
        for name in ("release", "approver"):
            make_key_pair(Path(folder, name))
        yield folder


@contextlib.contextmanager
def _named(kind: str, seed: int) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        again = f"python -m tests.support.alias_steps {kind} {seed}"
        raise AssertionError(f"{type(error).__name__}: {error}; to repeat it: {again}") from error


if __name__ == "__main__":
    asked, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[-1])
    began, all_actors = time.monotonic(), Actors()
    database = Postgres().url() if asked == "postgres" else ""
    found = seeded(asked, range(first, last + 1), all_actors, S3Server() if asked == "s3" else None, database)
    print(f"{last - first + 1} seeds in {time.monotonic() - began:.0f} s: {dict(found)}")
    all_actors.stop()
