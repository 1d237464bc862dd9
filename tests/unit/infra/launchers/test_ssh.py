"""The hosts that `ssh` starts nodes on, and what they are told. (With a real sshd: tests/integration.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import UsageError
from data_contracts.messages.gang import ConductorAddress, Launch
from infra.launchers.ssh import SshNodes, read_hosts
from infra.store import Store
from tests.support.refusals import refusal

TEXT = """\
# our machines
gpu-1
trainer@gpu-2   slots=2   # two nodes

10.0.0.7
"""


def test_a_host_stands_there_as_often_as_it_has_slots(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text(TEXT)
    assert read_hosts(path, "train.pool") == ["gpu-1", "trainer@gpu-2", "trainer@gpu-2", "10.0.0.7"]


@pytest.mark.parametrize(
    "line", ["-oProxyCommand=x", "gpu-1 gpu-2", "gpu-1 slots=0", "gpu-1 slots=x", "gpu;rm", "gpu-1 slots=99999"]
)
def test_what_is_no_host_is_refused_with_its_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text(f"gpu-0\n{line}\n")
    said = refusal(UsageError, read_hosts, path, "train.pool")
    assert f"{path}:2: {line!r} is not a host." in said


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot be read"), (b"\xff", "cannot be read"), (b"#\n", "names no host")],
)
def test_a_file_without_hosts_is_refused_with_its_field(content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    if content is not None:
        path.write_bytes(content)
    message = refusal(UsageError, read_hosts, path, "evaluate.pool")
    assert message.startswith("evaluate.pool: ")
    assert said in message


@pytest.mark.parametrize("names", [None, "postgresql://tw:env:NAMES@db/names"])
def test_a_host_gets_the_credentials_that_the_store_needs_and_no_others(
    names: str | None, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "PGSSLMODE", "NAMES", "OTHER_TOKEN"):
        monkeypatch.setenv(name, "x")
    store.pointers = names
    at = ConductorAddress(address="10.0.0.9", port=20_000, certificate="")
    hub: Any = None
    nodes = SshNodes(store, Launch(training="trainings/k-0", nodes=1, devices=1, conductor=at), hub, ["n0"])
    passed = nodes._node_variables()
    kept = [name for name in ("AWS_SECRET_ACCESS_KEY", "PGSSLMODE", "NAMES", "OTHER_TOKEN") if name in passed]
    assert kept == (["PGSSLMODE", "NAMES"] if names else [])
    assert passed["conductor"] == "wss://10.0.0.9:20000"
