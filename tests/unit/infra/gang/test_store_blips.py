"""Each call that a conductor makes to the store fails once, at its turn: the training ends well all the same.

Nodes are told by hand: they join, and answer once the roll-call is there, without any process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import StorageUnavailable, UsageError
from data_contracts.messages.gang import Heartbeat, Launch, NodeExit
from infra.gang import conductor as conductor_module
from infra.gang.conductor import GangOutcome
from infra.store import Store, layout, open_store
from tests.support.scripted_nodes import TRAINING, ScriptedNode, conduct_scripted

pytestmark = pytest.mark.usefixtures("no_pauses")

METHODS = ("create", "read", "replace", "names", "walk", "exists", "delete", "digest")


class Node(ScriptedNode):
    """Sends a heartbeat before it ends."""

    def train(self, launch: Launch) -> list[Heartbeat | NodeExit]:
        return [Heartbeat(), *super().train(launch)]


def train(store: Store, **options: Any) -> GangOutcome:
    nodes = open_store(store.uri)
    settings = {"retry": {"storage": 0}, "keep": 1, "patience_s": 0.1, **options}
    return conduct_scripted(store, lambda generation, node: Node(nodes, generation, node), **settings)


def failing(store: Store, monkeypatch: pytest.MonkeyPatch, which: tuple[str, int], late: bool) -> list[str]:
    """Make the nth call of this name and path fail; `late`: after it was carried out. The calls that were made."""
    calls: list[str] = []

    def patched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            calls.append(f"{name} {arguments[0]}")
            fails = (calls[-1], calls.count(calls[-1])) == which
            value = real(*arguments, **more) if late or not fails else None
            if fails:
                raise StorageUnavailable("the store is away.")
            return value

        return call

    for name in METHODS:
        monkeypatch.setattr(store._backend, name, patched(name, getattr(store._backend, name)))
    return calls


@pytest.mark.parametrize("late", [False, True])
def test_no_single_failure_of_the_store_ends_a_training(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        whole = open_store(str(tmp_path / "whole"))
        calls = failing(whole, patch, ("none", 1), late)
        train(whole)
    assert len(set(calls)) > 15
    # Each writing, and the first of what is asked again and again.
    turns = [(call, n + 1) for call in dict.fromkeys(calls) for n in range(calls.count(call))]
    turns = [turn for turn in turns if turn[1] == 1 or turn[0].startswith(("create", "replace", "delete"))]
    for turn, about in enumerate(turns):
        store = open_store(str(tmp_path / str(turn)))
        with monkeypatch.context() as patch:
            made = failing(store, patch, about, late)
            outcome = train(store)
        assert about[0] in made
        assert outcome.checkpoint.step == 10, about
        held = open_store(store.uri)
        assert held.read_json(layout.result(TRAINING)) == outcome.checkpoint.to_json(), about
        assert held.verify(outcome.checkpoint.ref), about
        assert not held.exists(layout.manifest(layout.checkpoint(TRAINING, 5, 0))), about


@pytest.mark.parametrize("fails", [False, True])
def test_every_node_is_ended_although_one_cannot_be(fails: bool, store: Store) -> None:
    """The first failure to end one is told, unless something else ended the generation: that is the cause then."""
    killed: list[int] = []

    class Unkillable(ScriptedNode):
        def kill(self) -> None:
            killed.append(self.place[2])
            raise UsageError("the server does not let go.")

    def start(generation: int, node: int) -> Unkillable:
        if fails and node == 2:
            raise ZeroDivisionError
        return Unkillable(open_store(store.uri), generation, node)

    with pytest.raises(ZeroDivisionError if fails else UsageError):
        conduct_scripted(store, start, launch={"nodes": 3})
    assert killed == ([0, 1] if fails else [0, 1, 2])


def test_a_store_that_stays_away_before_a_generation_is_part_of_the_budget(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left, seen = store.create_json, [2], []

    def sometimes(path: str, value: Any) -> None:
        if path.endswith("launch.json") and left[0] > 0:
            left[0] -= 1
            raise StorageUnavailable("the store is away.")
        real(path, value)

    monkeypatch.setattr(store, "create_json", sometimes)
    monkeypatch.setattr(conductor_module, "patiently", lambda work: work())
    monkeypatch.setattr(conductor_module, "MAX_BACKOFF_S", 0.01)
    assert train(store, retry={"storage": 2}, on_progress=seen.append).checkpoint.step == 10
    sentences = [progress.sentence for progress in seen if progress.phase == "ended"]
    assert sentences == ["no generation began (storage): the store is away. Continuing from step 0."] * 2


def test_a_number_that_a_fenced_conductor_took_is_left_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real, others = store.create_json, [True]

    def raced(path: str, value: Any) -> None:
        if path == layout.launch(TRAINING, 0) and others.pop():
            real(path, {"token": 0})
        real(path, value)

    monkeypatch.setattr(store, "create_json", raced)
    outcome = train(store)
    assert (outcome.checkpoint.generation, outcome.generations) == (1, 2)
