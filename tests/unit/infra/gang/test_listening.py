"""No process of a gang listens anywhere but on the address of its node: seen in the kernel's own tables."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.processes.processes import find_marked
from tests.support.hosts import Hosts
from tests.support.nodes import Nodes

_LISTEN = "0A"


def listeners(mark: str) -> dict[str, set[str]]:
    """TCP and UDP addresses on which the marked processes can be reached, with the command lines that do."""
    found: dict[str, set[str]] = {}
    for pid in find_marked(mark):
        with contextlib.suppress(OSError):
            inodes = {os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir()}
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            for address in _addresses(pid, inodes):
                found.setdefault(address, set()).add(command)
    return found


def _addresses(pid: int, inodes: set[str]) -> set[str]:
    found = set()
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        # The process' own network namespace, which need not be this one's.
        for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if f"socket:[{fields[9]}]" in inodes and (fields[3] == _LISTEN or kind.startswith("udp")):
                found.add(_address(fields[1].partition(":")[0]))
    return found


def _address(text: str) -> str:
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    return str(ipaddress.ip_address(struct.pack(f"={len(words)}I", *words)))


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    nodes: list[Nodes] = []

    def start(addresses: list[str], devices: int, *where: Any) -> Nodes:
        nodes.append(Nodes(tmp_path, addresses, devices, *where))
        return nodes[-1]

    yield start
    for one in nodes:
        one.close()


@pytest.mark.warm  # the other test is not: a fork has the network of the process that it is forked from
@pytest.mark.parametrize(("nodes", "devices"), [(1, 2), (2, 1)])
def test_a_gang_on_this_machine_listens_on_loopback_alone(
    nodes: int, devices: int, started: Callable[..., Nodes]
) -> None:
    gang = started(["127.0.0.1"] * nodes, devices)
    gang.train()
    found = [listeners(mark) for mark in gang.marks]
    assert [set(one) for one in found] == [{"127.0.0.1"}] * nodes, found
    others = {address for _, _, _, _, (address, *_) in socket.getaddrinfo(socket.gethostname(), None)} - {"127.0.0.1"}
    for address in others:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, gang.meeting["port"]), timeout=5).close()
    assert gang.end() == [0] * nodes


@pytest.mark.root
@pytest.mark.apt("iproute2")
def test_a_host_listens_on_its_own_address_alone(started: Callable[..., Nodes]) -> None:
    try:
        hosts = Hosts(2)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr.decode().strip()}")
    try:
        gang = started(hosts.addresses, 2, hosts.inside, hosts.gateway)
        gang.train()
        found = [listeners(mark) for mark in gang.marks]
        assert [set(one) for one in found] == [{address} for address in hosts.addresses], found
        assert gang.end() == [0, 0]
    finally:
        hosts.close()
