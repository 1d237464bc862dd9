"""Which nodes can be reached: one that does not answer is known after two probes, one that refuses lives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from infra.launch import links as links_module
from infra.launch.links import Links


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "PROBE_S", 0.1)


@pytest.fixture
def pair() -> Iterator[tuple[Links, Links]]:
    one, other = Links(0, "127.0.0.1"), Links(1, "127.0.0.1")
    yield one, other
    one.stop()
    other.stop()


def joined(number: int, links: Links, address: str = "127.0.0.1") -> dict[str, object]:
    return {"node": number, "address": address, "links": links.port}


def test_nodes_that_answer_or_refuse_are_reached(pair: tuple[Links, Links]) -> None:
    one, other = pair
    nodes = [joined(0, one), joined(1, other)]
    one.meet(nodes)
    other.meet(nodes)
    until = time.monotonic() + 10
    while set(one._missed) != {1} or set(other._missed) != {0}:
        assert time.monotonic() < until
        time.sleep(0.01)
    other.stop()
    other.join()
    for _ in range(3):
        assert one._reaches(nodes[1])
    assert one.unreachable == []


def test_a_node_that_does_not_answer_is_unreachable_after_two_probes(
    pair: tuple[Links, Links], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    seen: list[list[int]] = []

    def silence(*_: Any, **__: Any) -> None:
        seen.append(one.unreachable)
        if len(seen) > 3:
            one.stop()
        raise TimeoutError

    monkeypatch.setattr(links_module.socket, "create_connection", silence)
    one.meet([joined(0, one), joined(1, other)])
    one.join()
    assert seen == [[], [], [1], [1]]
    monkeypatch.undo()
    one._stopped.clear()
    assert one._reaches(joined(1, other))
