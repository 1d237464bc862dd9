"""What a user's file may say, and the sentence for what it may not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from data_contracts.errors import SpecError
from infra.environments.packages import read_requirements


def test_lines_as_pip_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_bytes(
        b"\xef\xbb\xbf# what the net needs\n\nStranger >= 1 # a comment\nhelper[extra]==2.5 ; python_version > '3'\n"
        b"hashed==1 \\\n    --hash=sha256:00 \\\n    --hash=sha256:01\n"
    )
    wanted = read_requirements(file, tmp_path)
    assert [str(package) for package in wanted.packages] == [
        "Stranger>=1",
        'helper[extra]==2.5; python_version > "3"',
        "hashed==1",
    ]
    assert {name: hashes.split() for name, hashes in wanted.hashes.items()} == {
        "stranger": [],
        "helper": [],
        "hashed": ["--hash=sha256:00", "--hash=sha256:01"],
    }


def test_each_hash_of_a_package_on_this_machine_counts(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(
        "stranger==1 --hash=sha256:00\nstranger ; python_version < '3'\n"
        "helper==2 ; python_version >= '3' --hash=sha256:01\nhelper==1 ; python_version < '3' --hash=sha256:02\n"
        "twice==1 --hash=sha256:03\ntwice --hash=sha256:04\n"
    )
    wanted = read_requirements(file, tmp_path)
    assert {name: hashes.split() for name, hashes in wanted.hashes.items()} == {
        "stranger": ["--hash=sha256:00"],
        "helper": ["--hash=sha256:01"],
        "twice": ["--hash=sha256:03", "--hash=sha256:04"],
    }


@pytest.mark.parametrize(
    "line",
    [
        "stranger @ https://me:word@index/stranger-1-py3-none-any.whl",
        "./lib",
        "-e .",
        "--index-url https://me:word@index/simple",
        "-r base.txt",
        "--me:word",
        "machine host login me password me:word",
        "trainwright>=1",
    ],
)
def test_what_a_node_could_not_install_is_refused(line: str, tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(f"# first\n\nhelper\n{line}\n")
    with pytest.raises(SpecError, match="entry 2 is not a package's name with versions of it") as caught:
        read_requirements(file, tmp_path)
    assert "me:word" not in str(caught.value)


def test_only_a_text_file_of_the_project_is_read(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "netrc").write_text("machine host password word\n")
    (project / "link.txt").symlink_to("../netrc")
    (project / "utf-16.txt").write_bytes("stranger".encode("utf-16"))
    os.mkfifo(project / "fifo")
    names = ("link.txt", "../netrc", "/proc/self/environ", "utf-16.txt", "fifo", "absent.txt", "a" * 300, ".")
    for name in names:
        with pytest.raises(SpecError, match="is not a text file of the project") as caught:
            read_requirements(project / name, project)
        assert "password" not in str(caught.value)
