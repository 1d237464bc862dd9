"""An environment is resolved once, made once on a machine, whole or not there, and never touches our own packages."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import SpecError, UsageError
from infra.environments import cache
from infra.environments.cache import interpreter_in
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


def said(packages: Packages, code: str) -> str:
    """What a line of Python prints in the environment."""
    command = [str(interpreter_in(cache.environment(packages))), "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def environments(home: Path) -> list[Path]:
    """What lies in the folder of environments, but locks and what was resolved."""
    found = (home / "environments").iterdir()
    return [path for path in found if path.suffix != ".making" and path.name != "resolved"]


def test_a_package_that_we_lack_is_there_with_what_it_needs(resolve: Resolve, wheels: Path) -> None:
    write_wheel(wheels, "stranger", "1.2.0", needs=["helper>=2", "pyyaml"])
    write_wheel(wheels, "helper", "2.5")
    packages = resolve("stranger>=1", "tqdm")
    tqdm, yaml = (f"{name}=={metadata.version(name)}" for name in ("tqdm", "pyyaml"))
    assert packages.sealed == packages.install == ("helper==2.5", yaml, "stranger==1.2.0", tqdm)
    assert resolve("helper").sealed == ("helper==2.5",)
    assert resolve("helper").install == ("helper==2.5", yaml)
    assert said(packages, "import helper, stranger, yaml; print(stranger.version, helper.version)") == "1.2.0 2.5"
    with pytest.raises(subprocess.CalledProcessError):
        said(packages, "import prefect")


def _no_hard_links(*_: Any, **__: Any) -> None:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


@pytest.mark.parametrize("link", [os.link, _no_hard_links])
def test_another_version_of_ours_leaves_ours_alone(
    link: Any, resolve: Resolve, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache.os, "link", link)
    write_wheel(wheels, "tqdm", "4.1.0")
    ours = {path: path.read_bytes() for path in (packages_folder() / "tqdm").rglob("*.py")}
    packages = resolve("tqdm<4.2")
    assert packages.sealed == ("tqdm==4.1.0",)
    assert said(packages, "import tqdm, yaml; print(tqdm.version, yaml.__version__)").split()[0] == "4.1.0"
    loader = cache.packages_in(packages) / "yaml/loader.py"
    assert os.path.samefile(loader, packages_folder() / "yaml/loader.py"), "nothing of ours is copied"
    assert loader.is_symlink() is (link is _no_hard_links)
    assert cache.is_complete(cache.environment(packages))
    assert {path: path.read_bytes() for path in ours} == ours


@pytest.mark.parametrize(
    ("line", "reason", "remedy"),
    [
        ("nowhere==1", "nowhere was not found", "Correct the name"),
        ("stranger==9", "no version of stranger==9", "Correct the name"),
        ("pyyaml<6", "pyyaml<6", "docs/environment.md"),
        ("clashing", "pyyaml<5", "docs/environment.md"),
        ("sourced", "no usable wheels", "environment.build"),
    ],
)
def test_what_cannot_be_installed_is_said_in_one_sentence(
    line: str, reason: str, remedy: str, resolve: Resolve, wheels: Path, home: Path
) -> None:
    write_wheel(wheels, "stranger", "1.2.0")
    write_wheel(wheels, "clashing", "1.0", needs=["pyyaml<5"])
    write_sdist(wheels, "sourced", "1.0", BACKEND)
    with pytest.raises(SpecError) as caught:
        resolve(line)
    assert caught.value.exit_code == 2
    assert "requirements.txt" in caught.value.message
    assert reason in caught.value.message
    assert "\n" not in caught.value.message
    assert remedy in caught.value.remedy
    assert environments(home) == []


def test_a_named_package_is_built(resolve: Resolve, wheels: Path) -> None:
    write_sdist(wheels, "sourced", "1.0", BACKEND)
    packages = resolve("sourced", build=("sourced",))
    assert packages.build == ("sourced",)
    assert said(packages, "import sourced; print(sourced.version)") == "1.0"


def test_the_same_requirements_are_not_resolved_again_until_asked(
    resolve: Resolve, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(wheels, "stranger", "1.2.0")
    first = resolve("stranger")
    made: list[Path] = []
    make = cache.make
    monkeypatch.setattr(cache, "make", lambda folder, order: made.append(folder) or make(folder, order))
    assert resolve("stranger") == first
    assert not made
    assert resolve("stranger", afresh=True) == first
    assert resolve("stranger", "# the same") == first
    assert len(made) == 1
    write_wheel(wheels, "stranger", "1.3.0")
    assert resolve("stranger").sealed == ("stranger==1.3.0",)


@pytest.mark.parametrize("afresh", [False, True])
def test_the_same_version_from_elsewhere_is_another_environment(
    afresh: bool, resolve: Resolve, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = write_wheel(wheels, "stranger", "1.0", {"stranger.py": "whose = 'theirs'\n"})
    first = resolve("stranger")
    assert said(first, "import stranger; print(stranger.whose)") == "theirs"
    theirs.unlink()
    ours = write_wheel(wheels, "stranger", "1.0", {"stranger.py": "whose = 'ours!!'\n"})
    digest = hashlib.sha256(ours.read_bytes()).hexdigest()
    monkeypatch.setenv("UV_CACHE_DIR", str(wheels.parent / "another"))
    for line in (f"stranger==1.0 --hash=sha256:{digest}", "stranger"):
        second = resolve(line, afresh=afresh)
        assert second.sealed == first.sealed
        assert said(second, "import stranger; print(stranger.whose)") == "ours!!"
    assert said(first, "import stranger; print(stranger.whose)") == "theirs"


def test_bytes_that_a_list_was_not_resolved_to_have_a_name_of_their_own(resolve: Resolve, wheels: Path) -> None:
    write_wheel(wheels, "stranger", "1.0", {"stranger.py": "whose = 'ours!!'\n"})
    claimed = Packages(("stranger==1.0",), ("stranger==1.0",), (), "0" * 64)
    made = cache.environment(claimed, wheels)
    assert made.name != cache._key(claimed)
    known = replace(claimed, contents=cache.contents_digest(made))
    assert cache.environment(known, wheels).name == cache._key(known)


def make_environment(packages: Packages, wheels: Path, made: Path, answers: Any) -> None:
    """In a process of its own: the environment, and a line in `made` if this process made it."""
    original = cache.make

    def counted(folder: Path, plan: cache.InstallPlan) -> Path:
        with made.open("a") as file:
            file.write("made\n")
        return original(folder, plan)

    cache.make = counted
    cache._in_use.clear()
    try:
        answers.put((str(cache.environment(packages, wheels)), cache.is_complete(cache.environment(packages))))
    except BaseException as error:
        answers.put(repr(error))


def test_eight_processes_make_one(resolve: Resolve, wheels: Path, tmp_path: Path, home: Path) -> None:
    write_wheel(wheels, "stranger", "1.2.0")
    packages = Packages(("stranger==1.2.0",), ("stranger==1.2.0",))
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    arguments = (packages, wheels, tmp_path / "made", answers)
    racers = [context.Process(target=make_environment, args=arguments) for _ in range(8)]
    for racer in racers:
        racer.start()
    found = {answers.get(timeout=60) for _ in racers}
    for racer in racers:
        racer.join()
    [only] = environments(home)
    assert found == {(str(only), True)}
    assert (tmp_path / "made").read_text() == "made\n"


def _cut(site: Path) -> None:
    (site / "stranger/__init__.py").write_text("")


def _remove(site: Path) -> None:
    (site / "yaml/loader.py").unlink()


def _unrecord(site: Path) -> None:
    (site.parents[2] / cache.RECORD).unlink()


def _no_interpreter(site: Path) -> None:
    (site.parents[2] / "bin/python").unlink()


def test_a_damaged_one_is_seen_and_made_again(
    resolve: Resolve, wheels: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(wheels, "stranger", "1.2.0")
    packages = resolve("stranger")
    for damage in (_remove, _unrecord, _no_interpreter):
        copy = tmp_path / damage.__name__
        shutil.copytree(cache.environment(packages), copy, symlinks=True, copy_function=os.link)
        assert cache.is_complete(copy)
        (packages_folder_in(copy) / "a_package_s_own_cache").touch()
        assert cache.is_complete(copy), "it may be in use by another process"
        (packages_folder_in(copy) / "a_package_s_own_cache").unlink()
        damage(packages_folder_in(copy))
        assert not cache.is_complete(copy), damage.__name__
    _cut(cache.packages_in(packages))
    monkeypatch.setattr(cache, "_in_use", {})
    assert cache.is_complete(cache.environment(packages, wheels))
    assert said(packages, "import stranger, yaml.loader; print(stranger.version)") == "1.2.0"
    assert len(environments(home)) == 1


def test_what_python_compiles_is_no_damage(resolve: Resolve, wheels: Path) -> None:
    write_wheel(wheels, "stranger", "1.2.0")
    packages = resolve("stranger")
    folder = cache.packages_in(packages) / "stranger/__pycache__"
    assert list(folder.glob("*.pyc")), "uv's packages are compiled when they are installed"
    (folder / "more.pyc").touch()
    assert cache.is_complete(cache.environment(packages))


def test_a_machine_that_cannot_install_the_list_says_so(resolve: Resolve, wheels: Path) -> None:
    with pytest.raises(UsageError, match="cannot be installed on .*stranger"):
        cache.environment(Packages(("stranger==7",), ("stranger==7",)), wheels)


def test_the_least_recently_used_makes_room(
    resolve: Resolve, wheels: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MAX_ENVIRONMENTS", 1)
    for version in ("1.0", "2.0"):
        write_wheel(wheels, "stranger", version)
        resolve(f"stranger=={version}")
    assert len(environments(home)) == 2, "this process uses both"
    for _, handle in cache._in_use.values():
        os.close(handle)
    monkeypatch.setattr(cache, "_in_use", {})
    write_wheel(wheels, "stranger", "3.0")
    newest = resolve("stranger==3.0")
    assert environments(home) == [cache.environment(newest)]


def test_code_without_packages_runs_with_ours(tmp_path: Path) -> None:
    assert cache.interpreter(None) == cache.interpreter(tmp_path) == sys.executable
