"""The connection between a node and its conductor: real sockets, TLS, and a cut in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from data_contracts.errors import CorruptError
from data_contracts.messages.gang import CancelMarker, Heartbeat, Joined, Meeting, NodeExit, Place
from infra.gang.hub import Hub, Line, News
from infra.gang.rank_files import Codes
from tests.support.waiting import until

CODES = Codes((b"k" * 32,))
FAILED = NodeExit(status="failed", error={"cause": "hung", "details": {}})


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub("127.0.0.1")
    hub.codes = CODES
    yield hub
    hub.close()


def joined(node: int, instance: str = "a") -> Joined:
    return Joined(node=node, address="127.0.0.1", port=1, instance=instance)


def connected(hub: Hub, node: int = 3, instance: str = "a", codes: Codes = CODES) -> Line:
    line = Line(hub.at, joined(node, instance), codes)
    line.start()
    return line


def heard(hub: Hub, kind: type) -> News:
    """What is said next, which is of this kind."""
    (news,) = until(hub.news)
    assert isinstance(news.message, kind)
    return news


def cut(hub: Hub, node: int) -> None:
    """Break the connection of a node, without a word."""
    hub._loop.call_soon_threadsafe(hub._connections[node].transport.abort)


def test_what_a_node_says_and_hears(hub: Hub) -> None:
    line = connected(hub)
    assert heard(hub, Joined).node == 3
    assert not line.is_cut
    assert line.say(Heartbeat(time=1.5))
    assert heard(hub, Heartbeat).message == Heartbeat(time=1.5)
    hub.tell(3, CancelMarker(cause="hung", stacks=True))
    assert until(lambda: line.marker) == CancelMarker(cause="hung", stacks=True)
    assert line.end(FAILED, 0)
    assert hub.left == {3}
    assert heard(hub, NodeExit).message == FAILED


def test_after_a_cut_both_sides_repeat_what_still_holds(hub: Hub) -> None:
    line = connected(hub)
    heard(hub, Joined)
    (place,) = Meeting(address="127.0.0.1", port=1, nodes=[joined(3)]).places().values()
    hub.tell(3, place)
    until(lambda: line.place)
    line.place = None
    cut(hub, 3)
    assert until(lambda: line.place) == place
    heard(hub, Joined)
    cut(hub, 3)
    assert line.end(FAILED, 60), "it is said once there is a connection again"
    until(lambda: hub.left)
    assert {type(one.message) for one in hub.news()} == {Joined, NodeExit}


def test_another_process_is_not_the_same_node(hub: Hub) -> None:
    first = connected(hub)
    heard(hub, Joined)
    cut(hub, 3)
    second = connected(hub, instance="b")
    until(lambda: second.is_taken)
    second.join()
    until(lambda: not first.is_cut)
    first.end(None, 0)


@pytest.mark.parametrize("codes", [Codes((b"z" * 32,)), Codes(())])
def test_who_lacks_the_key_is_not_heard(codes: Codes, hub: Hub) -> None:
    line = connected(hub, codes=codes)
    until(lambda: "HTTP 403" in line.trouble)
    assert line.is_cut
    assert hub.news() == []
    line.end(None, 0)


def test_before_the_generation_is_known_nobody_is_heard(hub: Hub) -> None:
    hub.codes = None
    line = connected(hub)
    until(lambda: "HTTP 403" in line.trouble)
    hub.codes = CODES
    assert heard(hub, Joined).node == 3
    line.end(None, 0)


def test_a_node_trusts_the_certificate_of_its_launch_alone(hub: Hub) -> None:
    other = Hub("127.0.0.1")
    line = Line(hub.at.model_copy(update={"certificate": other.at.certificate}), joined(3), CODES)
    line.start()
    until(lambda: "certificate verify failed" in line.trouble)
    assert hub.news() == []
    line.end(None, 0)
    other.close()


SAID = ["nothing", "[]", '{"says": "Launch"}', '{"says": "Heartbeat", "ranks": 5}', '{"says": "Joined", "node": 3}']


@pytest.mark.parametrize("text", SAID)
def test_what_no_node_says_is_corrupt(text: str, hub: Hub) -> None:
    line = connected(hub)
    heard(hub, Joined)
    connection: Any = line._connection
    connection.send(text)
    until(lambda: hub._news)
    with pytest.raises(CorruptError, match="The connection of node 3 carries what no process of this training says"):
        hub.news()
    line.end(None, 0)


def test_news_that_nobody_reads_take_no_more_room(hub: Hub) -> None:
    """A conductor that waits for its store for minutes hears the newest of each."""
    line = connected(hub)
    for number in range(200):
        until(lambda number=number: line.say(Heartbeat(time=float(number))))
    until(lambda: any(one.message == Heartbeat(time=199.0) for one in list(hub._news.values())))
    assert [type(one.message) for one in hub.news()] == [Joined, Heartbeat]
    line.end(None, 0)


def test_a_hub_that_is_closed_listens_no_more(hub: Hub) -> None:
    other = Hub("127.0.0.1")
    other.codes = CODES
    line = connected(other)
    until(lambda: not line.is_cut)
    other.close()
    until(lambda: "refused" in line.trouble)
    line.end(None, 0)
    with pytest.raises(OSError, match="Connect call failed"):
        asyncio.run(asyncio.open_connection("127.0.0.1", other.at.port))


@pytest.mark.parametrize(("count", "peers"), [(1, 0), (2, 1), (16, 15), (17, 5), (1250, 11)])
def test_each_node_has_a_place_and_few_peers(count: int, peers: int) -> None:
    nodes = [Joined(node=2 * number, address="a", port=number, host=f"h{number // 2}") for number in range(count)]
    places = Meeting(address="a", port=7, nodes=nodes).places()
    assert [place.place for place in places.values()] == list(range(count))
    assert list(places) == [2 * number for number in range(count)]
    assert {place.nodes for place in places.values()} == {count}
    for node, place in places.items():
        assert isinstance(place, Place)
        assert place.on_host == sum(one.host == f"h{node // 4}" for one in nodes)
        assert len({peer.node for peer in place.peers} - {node}) == len(place.peers) == peers
