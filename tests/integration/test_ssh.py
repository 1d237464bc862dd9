"""Gangs on hosts behind a real sshd that are not reached. What is the same elsewhere is in `test_launchers.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clusters import SshHosts, processes_left
from tests.support.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.apt("openssh-server")]
FAKE = {"steps": 10, "every": 5}


@pytest.fixture
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    hosts = SshHosts(tmp_path_factory.mktemp("hosts"))
    try:
        yield hosts
    finally:
        hosts.close()


def test_a_host_that_is_not_there_yet_is_tried_again(hosts: SshHosts, tmp_path: Path) -> None:
    """As one that boots: no retry is used up, and nothing is given up before the deadline of the roll-call."""
    hosts.shut()
    gang = hosts.conduct(tmp_path, FAKE, nodes=2, retry={"node_lost": 0})
    tried = tmp_path / "tried"
    ssh = hosts.folder / "bin" / "ssh"
    ssh.write_text(ssh.read_text().replace("exec ", f"echo once >> {tried}\nexec "))
    until(lambda: tried.exists() and len(tried.read_text().splitlines()) >= 2, what=gang.lines)
    hosts.open()
    assert gang.trained() == (10, 1)
    until(lambda: not processes_left(gang.store), what=lambda: processes_left(gang.store))


def test_a_host_whose_key_is_not_known_gets_nothing(hosts: SshHosts, tmp_path: Path) -> None:
    (hosts.folder / "known").write_text("")
    ended = hosts.conduct(tmp_path, FAKE, nodes=2, rollcall_timeout_s=15).ended()
    assert ended["cause"] == "gang_incomplete"
    again = "(, and is tried again)?"
    expected = rf"Node 0 \(n0 was not reached{again}\), 1 \(n1 was not reached{again}\) of 2 had not answered"
    assert re.search(expected, ended["message"])
    assert "Host key verification failed" in ended["details"]["log"]
