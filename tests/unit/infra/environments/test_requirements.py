"""What a user's file may say, and the sentence for what it may not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from data_contracts.errors import SpecError
from infra.environments.packages import read_requirements

LOCK = """\
version = 1
revision = 3
requires-python = "{python}"

[[package]]
name = "net"
version = "0"
source = {{ virtual = "." }}
dependencies = [{{ name = "stranger" }}]

[package.metadata]
requires-dist = [{{ name = "stranger" }}]

[[package]]
name = "stranger"
version = "1.2.0"
source = {source}
"""
ON_INDEX = '{ registry = "https://packages.example/simple" }'


def test_lines_as_pip_reads_them(tmp_path: Path) -> None:
    (tmp_path / "base.txt").write_text("helper[extra]==2.5 ; python_version > '3'\n")
    (tmp_path / "bounds.txt").write_text("helper<3\n")
    file = tmp_path / "requirements.txt"
    file.write_text(
        "# what the net needs\n\nStranger >= 1 # a comment\n-r base.txt\n--constraint=bounds.txt\n"
        "hashed==1 \\\n    --hash=sha256:00 \\\n    --hash=sha256:01\n"
    )
    wanted = read_requirements(file, tmp_path)
    assert wanted.requirements == (
        "Stranger >= 1",
        "helper[extra]==2.5 ; python_version > '3'",
        "hashed==1      --hash=sha256:00      --hash=sha256:01",
    )
    assert wanted.constraints == ("helper<3",)
    assert wanted.names == {"stranger", "helper", "hashed"}


@pytest.mark.parametrize("option", ['-r "for tests.txt"', "--requirement='for tests.txt'", "-r for\\ tests.txt"])
def test_a_byte_order_mark_and_a_quoted_path_are_read(option: str, tmp_path: Path) -> None:
    (tmp_path / "for tests.txt").write_text("helper==2.5\n")
    file = tmp_path / "requirements.txt"
    file.write_bytes(b"\xef\xbb\xbfstranger==1\n" + option.encode())
    assert read_requirements(file, tmp_path).requirements == ("stranger==1", "helper==2.5")


def test_a_file_that_is_named_often_is_read_once(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(f"-r {number + 1}.txt\n-r {number + 1}.txt\n-c {number + 1}.txt\n")
    (tmp_path / "40.txt").write_text("helper==2.5\n")
    wanted = read_requirements(tmp_path / "0.txt", tmp_path)
    assert (wanted.requirements, wanted.constraints) == (("helper==2.5",), ("helper==2.5",))


def test_files_that_name_one_another_without_end_are_refused(tmp_path: Path) -> None:
    for number in range(2000):
        (tmp_path / f"{number}.txt").write_text(f"-r {number + 1}.txt\n")
    with pytest.raises(SpecError, match=r"50\.txt:1: more than 50 files name one another in a row"):
        read_requirements(tmp_path / "0.txt", tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("-e .", "requirements.txt:1: -e is an option"),
        ("\n--extra-index-url https://me:word@index", "requirements.txt:2: --extra-index-url is an option"),
        ("stranger @ https://me:word@host/stranger.whl", "stranger is required from an address"),
        ("./stranger-1.whl", "is not a requirement"),
        ("https://me:word@host/stranger.whl", "is not a requirement"),
        ("stranger==", "is not a requirement"),
        ("trainwright", "Trainwright itself is not installed there"),
        ("\n-r requirements.txt", "requirements.txt:2: {folder}/requirements.txt names itself"),
        ("\n-r missing.txt", "requirements.txt:2: {folder}/missing.txt does not exist"),
        (b"\xff", "it is not UTF-8"),
        ("-r /proc/self/environ", "requirements.txt:1: /proc/self/environ is outside of the project"),
        ("-r https://me:word@host/base.txt", "requirements.txt:1: -r names an address"),
        ("--constraint file:///me:word", "requirements.txt:1: --constraint names an address"),
        ("-r me:word base.txt", "requirements.txt:1: -r does not name one file"),
        ("-r \0", "requirements.txt:1: -r does not name one file"),
        ('-r ""', "requirements.txt:1: -r does not name one file"),
        ('-r "me:word', "requirements.txt:1: -r does not name one file"),
        ("-c ../netrc", "../netrc is outside of the project"),
        ("-r link.txt", "requirements.txt:1: {folder}/link.txt is outside of the project"),
        ("-r fifo", "fifo is not a regular file"),
        ("machine host login me password me:word", "requirements.txt:1: this line is not a requirement"),
        ("--me:word", "requirements.txt:1: this line is an option"),
    ],
)
def test_what_a_node_could_not_install_is_refused(text: str | bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    tmp_path = tmp_path / "project"
    (tmp_path.parent / "netrc").write_text("machine host login me password me:word\n")
    (tmp_path / "link.txt").symlink_to("../netrc")
    os.mkfifo(tmp_path / "fifo")
    file = tmp_path / "requirements.txt"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SpecError) as caught:
        read_requirements(file, tmp_path)
    assert said.format(folder=tmp_path) in caught.value.message
    assert "me:word" not in str(caught.value)


def test_the_spec_s_own_file_is_in_the_project(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "netrc").write_text("machine host password word\n")
    (inside / "link.txt").symlink_to("../netrc")
    for place in (inside / "link.txt", inside / "../netrc", Path("/proc/self/environ")):
        with pytest.raises(SpecError, match="is outside of the project") as caught:
            read_requirements(place, inside)
        assert "word" not in str(caught.value)
    project(inside)
    (inside / "uv.lock").rename(tmp_path / "uv.lock")
    (inside / "uv.lock").symlink_to("../uv.lock")
    with pytest.raises(SpecError, match=r"uv\.lock is outside of the project"):
        read_requirements(inside, inside)


def project(folder: Path, python: str = ">=3.11", source: str = ON_INDEX) -> Path:
    text = f'[project]\nname = "net"\nversion = "0"\nrequires-python = "{python}"\ndependencies = ["stranger"]\n'
    (folder / "pyproject.toml").write_text(text)
    (folder / "uv.lock").write_text(LOCK.format(python=python, source=source))
    return folder


def test_a_lock_gives_its_versions_and_stays(tmp_path: Path) -> None:
    lock = (project(tmp_path) / "uv.lock").read_text()
    # What one build of torch brings is left to the machine's own.
    lock = lock.replace("dependencies = [", 'dependencies = [{ name = "nvidia-nccl-cu13" }, ')
    lock += f'\n[[package]]\nname = "nvidia-nccl-cu13"\nversion = "2.27"\nsource = {ON_INDEX}\n'
    (tmp_path / "uv.lock").write_text(lock)
    wanted = read_requirements(tmp_path, tmp_path)
    assert wanted.requirements == ("stranger==1.2.0",)
    assert (tmp_path / "uv.lock").read_text() == lock


def test_a_lock_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"there is no pyproject\.toml in"):
        read_requirements(tmp_path, tmp_path)
    project(tmp_path, python=">=3.14")
    with pytest.raises(SpecError, match=r"uv\.lock is for Python >=3\.14, but Trainwright runs with Python 3\."):
        read_requirements(tmp_path, tmp_path)
    project(tmp_path, source='{ editable = "lib" }')
    with pytest.raises(SpecError, match=r"uv\.lock: one of its packages is a folder, which nodes do not have"):
        read_requirements(tmp_path, tmp_path)
    project(tmp_path)
    (tmp_path / "uv.lock").write_text('requires-python = ">=3.11"\nversion = "x"')
    with pytest.raises(SpecError, match=r"uv\.lock cannot be read: "):
        read_requirements(tmp_path, tmp_path)
    (tmp_path / "uv.lock").write_text("not TOML")
    with pytest.raises(SpecError, match="is not a lock of uv"):
        read_requirements(tmp_path, tmp_path)


def test_a_path_that_no_file_system_takes_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"environment: \S+ cannot be read \(File name too long\)"):
        read_requirements(tmp_path / ("a" * 300), tmp_path)
    (tmp_path / "requirements.txt").write_text(f"-r {'a' * 300}")
    with pytest.raises(SpecError, match=r"requirements.txt:1: \S+ cannot be read \(File name too long\)"):
        read_requirements(tmp_path / "requirements.txt", tmp_path)
