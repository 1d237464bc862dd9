"""The file of hosts that `ssh` starts nodes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_contracts.errors import UsageError
from infra.launchers.ssh import read_hosts
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
