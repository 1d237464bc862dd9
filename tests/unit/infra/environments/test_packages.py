"""The list that a bundle holds: the same on every machine, and read back only if it is one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from data_contracts.errors import CorruptError
from infra.environments.packages import INSTALL, SEALED, Packages, packages_of

CPU = {"torch": "2.13.0+cpu", "stranger": "1.2.0", "numpy": "2.2.1"}
CUDA = {
    "torch": "2.13.0",
    "stranger": "1.2.0",
    "numpy": "2.2.1",
    "nvidia-nccl-cu13": "2.27",
    "triton": "3.5",
    "cuda-bindings": "13.0",
}


def test_cpu_and_cuda_agree() -> None:
    here = Packages.of(CPU, {"torch", "stranger"}, ["Some_Name"])
    there = Packages.of(CUDA, {"torch", "stranger", "triton", "nvidia-nccl-cu13"}, ["Some_Name"])
    assert here == there
    assert here.sealed == ("stranger==1.2.0", "torch==2.13.0")
    assert here.install == ("numpy==2.2.1", "stranger==1.2.0", "torch==2.13.0")
    assert here.files() == there.files()
    assert here.files()[SEALED] == b"stranger==1.2.0\ntorch==2.13.0\n"


def test_only_what_the_user_asked_for_counts_in_keys() -> None:
    ours = Packages.of(CPU, {"stranger"}, [])
    newer = Packages.of({**CPU, "numpy": "2.3.0"}, {"stranger"}, ["stranger"])
    assert ours.files()[SEALED] == newer.files()[SEALED]
    assert ours.digest == newer.digest
    assert ours.digest != Packages.of({**CPU, "stranger": "1.2.1"}, {"stranger"}, []).digest


def read(sealed: str, install: object, build: object = (), **more: object) -> Packages:
    facts = {"schema_version": 1, "install": install, "build": build, **more}
    return Packages.of_files({SEALED: sealed.encode(), INSTALL: json.dumps(facts).encode()}, "code/abc")


def test_it_is_read_back() -> None:
    packages = Packages.of(CPU, {"stranger"}, ["stranger"])
    for one in (packages, replace(packages, contents="0" * 64, uploaded_before="2026-11-21T00:00:00+00:00")):
        assert Packages.of_files(one.files(), "") == one
        assert one.files()[SEALED] == packages.files()[SEALED], "neither changes a key"
    assert read("", []) == Packages((), ())


@pytest.mark.parametrize(
    "entry",
    [
        "--index-url=https://evil",
        "-r/etc/passwd",
        "stranger",
        "stranger==",
        "stranger==1.0 --hash=sha256:00",
        "stranger==1.0\n--pre",
        "stranger==1.0+cpu",
        "stranger==*",
        "stranger @ https://evil/x.whl",
        "../stranger==1.0",
        "Stranger==1.0",
        "stranger[extra]==1.0",
        "stranger==1.0; python_version>'3'",
        "x" * 200 + "==1.0",
    ],
)
def test_what_is_no_name_with_a_version_is_refused(entry: str) -> None:
    with pytest.raises(CorruptError, match="code/abc does not hold the packages of an environment"):
        read("", [entry])
    with pytest.raises(CorruptError):
        read(entry, ["stranger==1.0"])


FORGED: list[tuple[object, object, object]] = [
    *(([], build, "0" * 64) for build in (["--evil"], ["a b"], "abc/", [1], None, [""], "a")),
    *(([], [], contents) for contents in ("x", 5, None, "A" * 64, ["0" * 64])),
    *((install, [], "0" * 64) for install in ([5], [None], "a", {"stranger==1.0": 1})),
    *((["stranger==1.0", other], [], "0" * 64) for other in ("stranger==1.0", "stranger==2.0")),
]


@pytest.mark.parametrize(("install", "build", "contents"), FORGED)
def test_a_forged_list_is_damage(install: object, build: object, contents: object) -> None:
    with pytest.raises(CorruptError):
        read("", install, build, contents=contents)


def test_the_lists_agree() -> None:
    assert read("", [], contents="0" * 64).contents == "0" * 64
    with pytest.raises(CorruptError, match="does not hold the packages"):
        read("stranger==1.0\n", ["helper==1.0"])


def test_a_forged_file_is_damage(tmp_path: Path) -> None:
    lists = b'"install": [], "build": []'
    versions = b'{"schema_version": 1, ' + lists, b'{"schema_version": 2, ' + lists + b"}"
    for forged in (b"[" * 100_000, b'{"a":' * 100_000, *versions, b"[]"):
        with pytest.raises(CorruptError):
            Packages.of_files({SEALED: b"", INSTALL: forged}, "code/abc")
    (tmp_path / INSTALL).parent.mkdir()
    for name, text in Packages((), ()).files().items():
        (tmp_path / name).write_bytes(text)
        with pytest.raises(CorruptError, match="does not hold the packages"):
            packages_of(tmp_path)
        (tmp_path / name).unlink()
