"""The first failure is the cause: who died, who raised, in which order; and where ranks meet."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import NodeLost, OutOfMemory, Preempted, TrainwrightError, UsageError, UserCodeError
from data_contracts.messages.gang import RankAnswer
from infra.gang import ranks
from infra.gang.rank_files import RankFiles
from infra.gang.ranks import RankWatch
from tests.support.waiting import until

DEAD = subprocess.Popen([sys.executable, "-c", ""])
# A zombie: its pid is given to no other process.
os.waitid(os.P_PID, DEAD.pid, os.WEXITED | os.WNOWAIT)


@pytest.fixture
def alive() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate(b"\n")


def watching(scratch: Path, count: int = 1) -> RankWatch:
    return RankWatch(RankFiles(scratch, rank) for rank in range(count))


# rank -> (alive, what it answered); the failure that is found, and whose
USER = UserCodeError("ValueError in the model.", user_traceback="tb")
LOST_PEER = NodeLost("Connection closed by peer.")
CASES: list[tuple[dict[int, tuple[bool, Any]], type[TrainwrightError] | None, int | None]] = [
    ({}, None, None),
    ({0: (True, None), 1: (True, None)}, None, None),
    ({0: (False, "done"), 1: (True, None)}, None, None),
    ({0: (False, "done"), 1: (False, "done")}, None, None),
    ({0: (True, None), 1: (False, None)}, NodeLost, 1),
    ({0: (True, USER), 1: (True, None)}, UserCodeError, 0),
    ({0: (False, USER), 1: (True, None)}, UserCodeError, 0),
    ({0: (True, LOST_PEER), 1: (False, None)}, NodeLost, 1),
    ({0: (True, USER), 1: (False, None)}, NodeLost, 1),
    ({0: (False, Preempted("asked.")), 1: (False, "done")}, Preempted, 0),
]


@pytest.mark.parametrize(("state", "error", "rank"), CASES)
def test_the_first_failure_is_found(
    state: dict[int, tuple[bool, Any]],
    error: type[TrainwrightError] | None,
    rank: int | None,
    alive: int,
    tmp_path: Path,
) -> None:
    for number, (lives, answer) in state.items():
        files = RankFiles(tmp_path, number)
        files.write_process(alive if lives else DEAD.pid)
        files.log.write_text(f"log of {number}")
        if answer == "done":
            files.write_answer(RankAnswer())
        elif answer is not None:
            files.write_error(answer)
    watch = watching(tmp_path, 2)
    found = watch.look()
    assert (None if found is None else type(found)) is error
    if found is not None:
        assert found.details["rank"] == rank
        if "without an answer" in found.message:
            assert found.details["log"] == f"log of {rank}"
    assert watch.running() is any(lives for lives, _ in state.values())


def test_of_two_errors_the_earlier_counts(tmp_path: Path) -> None:
    watch = watching(tmp_path, 2)
    RankFiles(tmp_path, 0).write_error(LOST_PEER)
    RankFiles(tmp_path, 1).write_error(USER)
    os.utime(tmp_path / "rank-1.error.json", ns=(1, 1))
    assert isinstance(watch.look(), UserCodeError)
    (tmp_path / "rank-1.error.json").unlink()
    RankFiles(tmp_path, 1).write_error(LOST_PEER)
    assert isinstance(watch.look(), UserCodeError), "what was first stays first"


def test_a_thread_notices_and_stop_looks_once_more(tmp_path: Path) -> None:
    watch = watching(tmp_path)
    watch.start()
    RankFiles(tmp_path, 0).write_process(DEAD.pid)
    until(lambda: watch.first)
    watch.stop()
    assert isinstance(watch.first, NodeLost)
    late = watching(tmp_path)
    late.stop()
    assert isinstance(late.first, NodeLost)


def test_a_kill_for_memory_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([4, 5])
    monkeypatch.setattr(ranks, "oom_kills", lambda: next(counts))
    watch = watching(tmp_path)
    RankFiles(tmp_path, 0).write_process(DEAD.pid)
    assert isinstance(watch.look(), OutOfMemory)


def test_an_internal_error_keeps_the_ranks_log(tmp_path: Path) -> None:
    files = RankFiles(tmp_path, 0)
    files.write_error(TrainwrightError("a bug."))
    files.log.write_text("Traceback")
    found = watching(tmp_path).look()
    when = files.error_ns / 1e9
    assert found.details == {"rank": 0, "log": "Traceback", "when": when}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_socket_listens_on_the_address_alone(address: str) -> None:
    with ranks.listen(address) as listener:
        assert listener.getsockname()[0] == address
        assert listener.getsockname()[1] in ranks._PORTS
        socket.create_connection(listener.getsockname()[:2], timeout=60).close()


def test_no_free_port_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Taken(socket.socket):
        def bind(self, address: Any) -> None:
            raise OSError(errno.EADDRINUSE, "in use")

    monkeypatch.setattr(ranks.socket, "socket", Taken)
    with pytest.raises(NodeLost, match=r"No free port was found on 127\.0\.0\.1"):
        ranks.listen("127.0.0.1")


def test_libraries_are_told_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    assert set(ranks.network_env("127.0.0.1").values()) == {socket.if_indextoname(1)}
    assert len(ranks.network_env("127.0.0.1")) == 3
    assert ranks.network_env("192.0.2.1") == {}
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    assert "NCCL_SOCKET_IFNAME" not in ranks.network_env("127.0.0.1")


@pytest.mark.parametrize("address", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_host_is_told_at_once(address: str) -> None:
    with pytest.raises(UsageError, match=f"^{socket.gethostname()} has no address {address} ") as raised:
        ranks.listen(address)
    assert raised.value.remedy.startswith("Set TRAINWRIGHT_ADDRESS")
