"""The first failure is the cause: who died, who raised, in which order; and where ranks meet."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import NodeLost, OutOfMemory, Preempted, TrainwrightError, UsageError, UserCodeError
from infra.launch import ranks
from infra.launch.ranks import RankWatch

DEAD = subprocess.Popen([sys.executable, "-c", ""])
DEAD.wait()


@pytest.fixture
def alive() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate(b"\n")


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


# rank -> (alive, what it answered); the failure that is found, and whose
USER = UserCodeError("ValueError in the model.", user_traceback="tb").to_json()
LOST_PEER = NodeLost("Connection closed by peer.").to_json()
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
    ({0: (False, Preempted("asked.").to_json()), 1: (False, "done")}, Preempted, 0),
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
        write(ranks.pid_file(tmp_path, number), {"rank": number, "pid": alive if lives else DEAD.pid})
        ranks.log_file(tmp_path, number).write_text(f"log of {number}")
        if answer == "done":
            write(ranks.done_file(tmp_path, number), {})
        elif answer is not None:
            write(ranks.error_file(tmp_path, number), answer)
    watch = RankWatch(tmp_path, range(2))
    found = watch.look()
    assert (None if found is None else type(found)) is error
    if found is not None:
        assert found.details["rank"] == rank
        if "without an answer" in found.message:
            assert found.details["log"] == f"log of {rank}"
    assert watch.running() is any(lives for lives, _ in state.values())


def test_of_two_errors_the_earlier_counts(tmp_path: Path) -> None:
    watch = RankWatch(tmp_path, range(2))
    write(ranks.error_file(tmp_path, 0), LOST_PEER)
    write(ranks.error_file(tmp_path, 1), USER)
    os.utime(ranks.error_file(tmp_path, 1), ns=(1, 1))
    assert isinstance(watch.look(), UserCodeError)
    write(ranks.error_file(tmp_path, 1), LOST_PEER)
    assert isinstance(watch.look(), UserCodeError), "what was first stays first"


def test_a_thread_notices_and_stop_looks_once_more(tmp_path: Path) -> None:
    watch = RankWatch(tmp_path, [0])
    watch.start()
    write(ranks.pid_file(tmp_path, 0), {"rank": 0, "pid": DEAD.pid})
    watch.join(30)
    assert isinstance(watch.first, NodeLost)
    late = RankWatch(tmp_path, [0])
    late.stop()
    assert isinstance(late.first, NodeLost)


def test_a_kill_for_memory_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([4, 5])
    monkeypatch.setattr(ranks, "oom_kills", lambda: next(counts))
    watch = RankWatch(tmp_path, [0])
    write(ranks.pid_file(tmp_path, 0), {"rank": 0, "pid": DEAD.pid})
    assert isinstance(watch.look(), OutOfMemory)


def test_an_internal_error_keeps_the_ranks_log(tmp_path: Path) -> None:
    write(ranks.error_file(tmp_path, 0), TrainwrightError("a bug.").to_json())
    ranks.log_file(tmp_path, 0).write_text("Traceback")
    found = RankWatch(tmp_path, [0]).look()
    assert found is not None
    when = ranks.error_file(tmp_path, 0).stat().st_mtime_ns / 1e9
    assert found.details == {"rank": 0, "log": "Traceback", "when": when}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_free_port_can_be_listened_on(address: str) -> None:
    port = ranks.free_port(address)
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as listener:
        listener.bind((address, port))


def test_no_free_port_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Taken(socket.socket):
        def bind(self, address: Any) -> None:
            raise OSError(errno.EADDRINUSE, "in use")

    monkeypatch.setattr(ranks.socket, "socket", Taken)
    with pytest.raises(NodeLost, match=r"No free port was found on 127\.0\.0\.1"):
        ranks.free_port("127.0.0.1")


def test_libraries_are_told_the_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    assert set(ranks.network_env("127.0.0.1").values()) == {socket.if_indextoname(1)}
    assert len(ranks.network_env("127.0.0.1")) == 3
    assert ranks.network_env("192.0.2.1") == {}
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    assert "NCCL_SOCKET_IFNAME" not in ranks.network_env("127.0.0.1")


@pytest.mark.parametrize(("cores", "devices", "threads"), [(8, 2, 4), (8, 3, 2), (2, 4, 1)])
def test_cores_are_shared_among_ranks(cores: int, devices: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert ranks.threads_per_rank(devices) == threads
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert ranks.threads_per_rank(devices) == threads


@pytest.mark.parametrize("address", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_host_is_told_at_once(address: str) -> None:
    with pytest.raises(UsageError, match=f"^{socket.gethostname()} has no address {address} ") as raised:
        ranks.free_port(address)
    assert raised.value.remedy.startswith("Set TRAINWRIGHT_ADDRESS")
