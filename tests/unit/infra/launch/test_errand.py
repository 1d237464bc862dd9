"""A piece of work on a node: what the child answers or raises, and what is laid out for it there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import CorruptError, GangIncomplete
from data_contracts.handoffs import Ref
from data_contracts.spec import RetrySpec
from infra.code import pack
from infra.launch.errand import laid_out, run_errand
from infra.launch.generation import Progress
from infra.launch.local import Start, local
from infra.launch.processes import find_marked, kill_marked, new_mark
from infra.launch.roster import roster
from infra.store import Store, layout, open_store

URI = layout.errand("20260101-000000-abc", "verify-1")


class Lobby:
    """Room that has to be waited for once."""

    def __init__(self) -> None:
        self.asked = self.given_back = 0

    def take(self, nodes: int) -> str | None:
        assert nodes == 1
        self.asked += 1
        return "full" if self.asked == 1 else None

    def give_back(self) -> None:
        self.given_back += 1


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    mark = new_mark()
    monkeypatch.setenv("TRAINWRIGHT_MARK", mark)
    yield mark
    left = find_marked(mark)
    kill_marked(mark)
    assert not left


@pytest.fixture
def code(store: Store, tmp_path: Path) -> Ref:
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").touch()
    (project / "net.py").write_text("HERE = True\n")
    return pack(project, store).ref


def errand(store: Store, request: dict[str, Any], code: Ref, **changes: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "holder": "test",
        "retry": RetrySpec(),
        "rollcall_timeout_s": 30,
        "start": local(store.uri, {}, URI),
        "room": Lobby(),
        "on_progress": lambda progress: None,
        "on_spent": lambda seconds: None,
        **changes,
    }
    places = [(["inner", "project"], code)]
    return run_errand(store, URI, "tests.support.child_module", {"inner": {}, **request}, places, **asked)


def test_it_waits_for_room_does_the_work_in_the_project_and_answers(store: Store, code: Ref) -> None:
    lobby, said = Lobby(), list[Progress]()
    answer = errand(store, {"do": "answer"}, code, room=lobby, on_progress=said.append)
    assert answer["got"]["inner"]["project"] == answer["project"] == answer["cwd"]
    assert not Path(answer["project"]).exists(), "the node took its scratch with it"
    assert (said[0].phase, said[0].sentence) == ("waiting", "full")
    assert lobby.given_back == 1
    lease = store.pointer(layout.lease(URI)).read()
    assert lease is not None
    assert lease.value["released"]
    # Gone on with, the same piece of work is another generation.
    errand(store, {"do": "answer"}, code)
    assert [seat.generation for seat in roster(store, URI)] == [1, 0]


def test_what_the_child_raises_is_raised_here(store: Store, code: Ref) -> None:
    lobby = Lobby()
    with pytest.raises(CorruptError, match="as asked") as caught:
        errand(store, {"do": "raise", "error": "CorruptError"}, code, room=lobby)
    assert caught.value.user_traceback == "Traceback: here"
    assert lobby.given_back == 1


def failing_first(start: Start, kills: int) -> Callable[[int, int], Any]:
    """Nodes that are killed as soon as they were started, `kills` times."""
    started = 0

    def begin(generation: int, node: int) -> Any:
        nonlocal started
        started += 1
        handle = start(generation, node)
        if started <= kills:
            handle._process.kill()  # type: ignore[attr-defined]
        return handle

    return begin


def test_a_lost_node_is_replaced_within_its_budget(store: Store, code: Ref) -> None:
    said: list[Progress] = []
    start = failing_first(local(store.uri, {}, URI), 1)
    assert errand(store, {"do": "answer"}, code, start=start, on_progress=said.append)["got"]
    assert any("tried again (node_lost)" in progress.sentence for progress in said)


def test_every_node_that_was_used_is_paid_for_whatever_came_of_it(store: Store, code: Ref) -> None:
    spent: list[float] = []
    start = failing_first(local(store.uri, {}, URI), 1)
    errand(store, {"do": "answer"}, code, start=start, on_spent=spent.append)
    with pytest.raises(CorruptError):
        errand(store, {"do": "raise", "error": "CorruptError"}, code, on_spent=spent.append)
    lived = [store.read_json(layout.node_exit(URI, number, 0)) for number in (1, 2)]
    assert len(spent) == 3
    assert spent[0] > 0
    for seconds, exit_ in zip(spent[1:], lived, strict=True):
        assert seconds > exit_["released"] - exit_["started"]


def test_a_node_that_never_comes_is_said(store: Store, code: Ref) -> None:
    class Absent:
        def ended(self) -> None:
            return None

        def log(self) -> str:
            return ""

        def told(self) -> str:
            return "its run is Late"

        def kill(self) -> None:
            return None

    with pytest.raises(GangIncomplete, match=r"Node 0 \(its run is Late\) of 1 had not answered"):
        errand(store, {}, code, start=lambda generation, node: Absent(), rollcall_timeout_s=0.2)


def test_places_are_filled_in_and_the_first_is_the_project(store: Store, tmp_path: Path) -> None:
    first, second = (Ref(uri=f"code/{name}", id=name * 64, seal=name * 64) for name in "ab")
    request: dict[str, Any] = {"sets": {"held": {"split": "val"}}}
    places = [(["project"], first), (["sets", "held", "path"], second)]
    project = laid_out(store, request, places, lambda ref: tmp_path / ref.id[0])
    assert project == tmp_path / "a"
    assert request == {
        "project": str(tmp_path / "a"),
        "sets": {"held": {"split": "val", "path": str(tmp_path / "b")}},
    }
