"""What lies where: a top level of known names, nothing that only one machine has, a whole lock."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.support.files import tracked_files

TOP_LEVEL = {
    ".ci", ".dvc", ".dvcignore", ".gitattributes", ".github", ".gitignore",
    "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "SECURITY.md",
    "mkdocs.yml", "pyproject.toml",
    "requirements-cpu.lock", "requirements-cuda.lock", "requirements.lock",
    "dvc.lock", "dvc.yaml", "prefect.yaml",
    "benchmarks", "data_contracts", "docs", "examples", "flows", "infra", "tasks", "tests", "training",
}  # fmt: skip
ROOMS = {"flows", "tasks", "training", "infra", "data_contracts"}
# Spelt in pieces, or this file would be found.
MACHINE_PATHS = re.compile(
    "|".join(["/" + "work/", "/" + "tmp/w/", "/" + "root/", "/" + "opt/wheels", "/" + "opt/pypi"])
)


@pytest.fixture(scope="module")
def files(repository: Path) -> list[Path]:
    """The repository's own files, relative to it."""
    return [Path(name) for name in tracked_files(repository)]


def test_nothing_names_one_machine(files: list[Path], repository: Path) -> None:
    found = [
        f"{path}:{number}: {line.strip()[:100]}"
        for path in files
        if b"\0" not in (content := (repository / path).read_bytes())
        for number, line in enumerate(content.decode(errors="replace").splitlines(), 1)
        if MACHINE_PATHS.search(line)
    ]
    assert not found, "\n".join(found)


def test_top_level_holds_only_what_belongs_there(files: list[Path]) -> None:
    assert {path.parts[0] for path in files} <= TOP_LEVEL


def test_the_licence_is_named_where_packages_and_images_say_it(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert "Apache License\n                           Version 2.0" in (repository / "LICENSE").read_text()
    assert 'org.opencontainers.image.licenses="Apache-2.0"' in (repository / "infra/docker/Dockerfile").read_text()


def test_every_package_has_an_init(files: list[Path], repository: Path) -> None:
    # A folder without one is left out of the installed package.
    folders = {path.parent for path in files if path.suffix == ".py" and path.parts[0] in ROOMS}
    assert not [str(folder) for folder in sorted(folders) if not (repository / folder / "__init__.py").is_file()]


def test_the_lock_pins_every_dependency_and_names_no_place(repository: Path) -> None:
    lines = [line for line in (repository / "requirements.lock").read_text().splitlines() if line[:1] != "#"]
    assert not [line for line in lines if not re.fullmatch(r"[A-Za-z0-9_.-]+(\[[a-z,-]+\])?==[A-Za-z0-9.]+", line)]
    pinned = {re.split(r"[\[=]", line)[0].lower().replace("_", "-") for line in lines}
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {re.split(r"[\[<>=]", requirement)[0].lower() for requirement in wanted}
    assert not names - pinned, "run `make lock`"
    assert [line for line in lines if line.startswith("torch==")] == ["torch==2.13.0"]


def test_one_module_makes_temporary_folders(files: list[Path], repository: Path) -> None:
    # So that each is private, removed by its maker, and swept if the maker was killed.
    used = re.compile(r"\btempfile\b|\bmkdtemp\b|\bmkstemp\b|\bgettempdir\b|[\"'](/var)?/tmp\b")
    sources = [path for path in files if path.suffix == ".py" and path.parts[0] in ROOMS]
    found = [str(path) for path in sources if used.search((repository / path).read_text())]
    assert found == ["infra/scratch.py"]
