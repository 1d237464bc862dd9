"""An environment is resolved once, made once on a machine, whole or not there, and never touches our own packages."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import CorruptError, SpecError
from infra.environments import cache
from infra.environments import installer as installer_module
from infra.environments.packages import Packages, packages_folder, packages_folder_in
from tests.support.wheels import write_sdist, write_wheel
from tests.unit.infra.environments.conftest import Resolve

BACKEND = """\
import pathlib, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    pathlib.Path("RAN").touch()
    with zipfile.ZipFile(f"{folder}/sourced-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("sourced.py", "version = '1.0'")
        info = "sourced-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: sourced\\nVersion: 1.0\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", f"sourced.py,,\\n{info}/METADATA,,\\n{info}/WHEEL,,\\n{info}/RECORD,,\\n")
    return "sourced-1.0-py3-none-any.whl"
"""


def printed(packages: Packages, code: str) -> str:
    """What a line of Python prints in the environment."""
    command = [str(cache.environment(packages) / "bin/python"), "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def environments(home: Path) -> list[Path]:
    """What lies in the folder of environments, but locks and what was resolved."""
    found = (home / "environments").iterdir()
    return [path for path in found if path.suffix != ".making" and path.name != "resolved"]


def test_a_package_that_we_lack_is_there_with_what_it_needs(installer: str, resolve: Resolve, wheels: Path) -> None:
    write_wheel(wheels, "stranger", "1.2.0", needs=["helper>=2", "pyyaml", "absent; extra == 'more'"])
    write_wheel(wheels, "helper", "2.5")
    write_wheel(wheels, "humanize", "4.1.0")
    ours = {path: path.read_bytes() for path in (packages_folder() / "humanize").rglob("*.py")}
    packages = resolve("stranger>=1", "humanize<4.2", "tqdm")
    tqdm, yaml = (f"{name}=={metadata.version(name)}" for name in ("tqdm", "pyyaml"))
    assert packages.sealed == packages.install == ("helper==2.5", "humanize==4.1.0", yaml, "stranger==1.2.0", tqdm)
    code = "import helper, humanize, stranger, yaml; print(stranger.version, helper.version, humanize.version)"
    assert printed(packages, code) == "1.2.0 2.5 4.1.0"
    assert printed(packages, "import yaml; print(yaml.__file__)") == str(packages_folder() / "yaml/__init__.py")
    assert ours == {path: path.read_bytes() for path in ours}, "another version of ours leaves ours alone"
    # The same on another machine, from the list alone.
    assert resolve("helper").sealed == ("helper==2.5",)
    assert resolve("helper").install == ("helper==2.5", yaml)


# uv has a sentence of its own for each; pip has two.
REFUSED = [
    ("uv", "nowhere==1", "nowhere was not found"),
    ("uv", "stranger==9", "no version of stranger==9"),
    ("uv", "clashing", "pyyaml<5"),
    ("uv", "sourced", "no usable wheels"),
    ("pip", "stranger==9", "requirement stranger==9 (from versions: 1.2.0)"),
    ("pip", "clashing", "clashing 1.0 depends on pyyaml<5"),
]


@pytest.mark.parametrize(("installer", "line", "reason"), REFUSED, indirect=["installer"])
def test_what_cannot_be_installed_is_said_in_one_sentence(
    installer: str, line: str, reason: str, resolve: Resolve, wheels: Path, home: Path
) -> None:
    write_wheel(wheels, "stranger", "1.2.0")
    write_wheel(wheels, "clashing", "1.0", needs=["pyyaml<5"])
    write_sdist(wheels, "sourced", "1.0", BACKEND)
    with pytest.raises(SpecError) as caught:
        resolve(line)
    assert "requirements.txt" in caught.value.message
    assert reason in caught.value.message
    assert "\n" not in caught.value.message
    assert environments(home) == []


def test_the_same_requirements_are_resolved_again_when_asked_and_pip_makes_the_same_environment(
    resolve: Resolve, wheels: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(wheels, "stranger", "1.2.0")
    first = resolve("stranger")
    made: list[Path] = []
    make = cache.make_environment
    monkeypatch.setattr(cache, "make_environment", lambda folder, *rest: made.append(folder) or make(folder, *rest))
    assert resolve("stranger") == resolve("stranger", "# the same") == first
    assert not made
    with monkeypatch.context() as patch:
        patch.setattr(installer_module.shutil, "which", lambda name: None)
        assert resolve("stranger", afresh=True) == first
    assert (len(made), len(environments(home))) == (1, 1)
    write_wheel(wheels, "stranger", "1.3.0")
    assert resolve("stranger").sealed == ("stranger==1.3.0",)


def test_a_named_package_is_built(resolve: Resolve, wheels: Path) -> None:
    write_sdist(wheels, "sourced", "1.0", BACKEND)
    packages = resolve("sourced", build=("sourced",))
    assert packages.build == ("sourced",)
    assert printed(packages, "import sourced; print(sourced.version)") == "1.0"


def test_the_same_version_from_elsewhere_is_another_environment(
    resolve: Resolve, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = write_wheel(wheels, "stranger", "1.0", {"stranger.py": "whose = 'theirs'\n"})
    first = resolve("stranger")
    assert printed(first, "import stranger; print(stranger.whose)") == "theirs"
    theirs.unlink()
    ours = write_wheel(wheels, "stranger", "1.0", {"stranger.py": "whose = 'ours!!'\n"})
    digest = hashlib.sha256(ours.read_bytes()).hexdigest()
    monkeypatch.setenv("UV_CACHE_DIR", str(wheels.parent / "another"))
    for line in (f"stranger==1.0 --hash=sha256:{digest}", "stranger"):
        second = resolve(line)
        assert second.sealed == first.sealed
        assert printed(second, "import stranger; print(stranger.whose)") == "ours!!"
    assert printed(first, "import stranger; print(stranger.whose)") == "theirs"
    with pytest.raises(CorruptError, match="does not have the hash"):
        resolve(f"stranger==1.0 --hash=sha256:{'0' * 64}")


def make_environment(packages: Packages, made: Path, answers: Any) -> None:
    """In a process of its own: the environment, and a line in `made` if this process made it."""
    original = cache.make_environment

    def counted(folder: Path, *rest: Any) -> None:
        with made.open("a") as file:
            file.write("made\n")
        original(folder, *rest)

    cache.make_environment = counted
    cache._in_use.clear()
    try:
        answers.put(str(cache.environment(packages)))
    except BaseException as error:
        answers.put(repr(error))


def test_eight_processes_make_one(
    resolve: Resolve, wheels: Path, tmp_path: Path, home: Path, node_wheels: None
) -> None:
    write_wheel(wheels, "stranger", "1.2.0")
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    arguments = (Packages(("stranger==1.2.0",), ("stranger==1.2.0",)), tmp_path / "made", answers)
    racers = [context.Process(target=make_environment, args=arguments) for _ in range(8)]
    for racer in racers:
        racer.start()
    found = {answers.get(timeout=500) for _ in racers}
    for racer in racers:
        racer.join()
    [only] = environments(home)
    assert found == {str(only)}
    assert (tmp_path / "made").read_text() == "made\n"


@pytest.fixture
def node_wheels(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's own configuration names the folder of wheels and no index."""
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(wheels)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
        monkeypatch.setenv(f"UV_{name}", value)


DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "a file is cut": lambda folder, module: module.write_text(""),
    "a file is gone": lambda folder, module: module.unlink(),
    "the record is gone": lambda folder, module: (folder / cache.RECORD).unlink(),
}


def test_a_damaged_one_is_seen_and_made_again(
    resolve: Resolve, wheels: Path, home: Path, node_wheels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(wheels, "stranger", "1.2.0")
    packages = resolve("stranger")
    folder = cache.environment(packages)
    module = packages_folder_in(folder) / "stranger/__init__.py"
    assert list(module.parent.glob("__pycache__/*.pyc")), "packages are compiled when they are installed"
    for damage, harm in DAMAGES.items():
        (module.parent / "a_package_s_own_cache").touch()
        (module.parent / "__pycache__/more.pyc").touch()
        monkeypatch.setattr(cache, "_in_use", {})
        assert cache.environment(packages) == folder
        assert (module.parent / "a_package_s_own_cache").exists(), "it may be in use by another process"
        harm(folder, module)
        monkeypatch.setattr(cache, "_in_use", {})
        assert cache.environment(packages) == folder
        assert module.read_text() == "version = '1.2.0'\n", damage
        assert not (module.parent / "a_package_s_own_cache").exists(), damage
        assert environments(home) == [folder]


@pytest.mark.usefixtures("few_needs")
def test_the_least_recently_used_makes_room(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MAX_ENVIRONMENTS", 1)
    # Nothing is to be installed into any of them.
    first, second, newest = (Packages((), (), (name,)) for name in ("a", "b", "c"))
    for packages in (first, second):
        cache.environment(packages)
    assert len(environments(home)) == 2, "this process uses both"
    for handle in cache._in_use.values():
        os.close(handle)
    monkeypatch.setattr(cache, "_in_use", {})
    made = cache.environment(newest)
    assert environments(home) == [made]


def test_code_without_packages_runs_with_ours(tmp_path: Path) -> None:
    assert cache.interpreter(None) == cache.interpreter(tmp_path) == sys.executable
