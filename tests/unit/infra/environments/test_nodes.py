"""A bundle carries the list, its digest covers what the user asked for, and a node installs it by itself."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from data_contracts.errors import CorruptError, UsageError
from data_contracts.messages.gang import Launch
from infra.code_bundle import changed_parts, pack, packages_in, unpack
from infra.environments import cache
from infra.environments.packages import INSTALL, SEALED, Packages, packages_folder_in, versions
from infra.gang.supervisor import lay_out_inputs
from infra.processes.processes import CODE_ROOT, is_alive
from infra.store import Store
from tests.support.files import write_files
from tests.support.pool import until
from tests.support.wheels import write_wheel
from tests.unit.infra.environments.conftest import Resolve

ASKED = Packages(("stranger==1.2.0",), ("pyyaml==6.0.3", "stranger==1.2.0"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_files(tmp_path / "project", {"pyproject.toml": "", "net.py": "import stranger\n"})


def test_the_code_s_digest_covers_what_was_asked_for_and_nothing_else(project: Path, store: Store) -> None:
    without, asked = pack(project, store), pack(project, store, packages=ASKED)
    assert without.digest != asked.digest
    newer = Packages(ASKED.sealed, ("pyyaml==6.0.4", "stranger==1.2.0"), ("stranger",))
    same = pack(project, store, packages=newer)
    assert same.digest == asked.digest
    assert same.ref != asked.ref, "the name of a bundle covers all of its files"
    other = Packages(("stranger==1.3.0",), ("stranger==1.3.0",))
    assert pack(project, store, packages=other).digest not in (asked.digest, without.digest)
    assert changed_parts(store, without.ref, asked.ref) == ["environment"]
    assert changed_parts(store, asked.ref, same.ref) == []
    assert packages_in(store, store.manifest(asked.ref)) == ASKED
    assert packages_in(store, store.manifest(without.ref)) is None
    (project / "net.py").write_text("import stranger as s\n")
    assert changed_parts(store, asked.ref, pack(project, store).ref) == ["environment", "code"]
    assert changed_parts(store, without.ref, pack(project, store).ref) == ["code"]
    before = pack(project, store, packages=ASKED)
    (project / "requirements.txt").write_text("stranger\n")  # what covers it is the list that it was resolved to
    assert changed_parts(store, before.ref, pack(project, store, packages=other).ref) == ["environment"]


def test_a_bundle_with_one_of_the_two_files_is_damaged(project: Path, store: Store) -> None:
    manifest = store.manifest(pack(project, store, packages=ASKED).ref)
    for name in (SEALED, INSTALL):
        rest = [file for file in manifest.content["files"] if not file["path"].endswith(name)]
        with pytest.raises(CorruptError, match="does not hold the packages"):
            packages_in(store, replace(manifest, content={**manifest.content, "files": rest}))


def test_a_project_may_not_bring_the_list_itself(project: Path, store: Store) -> None:
    write_files(project, {SEALED: "evil==1\n"})
    assert SEALED not in pack(project, store).chosen.packed
    with pytest.raises(UsageError, match=r"packages\.txt is in the place of Trainwright's own files"):
        pack(project, store, include=[SEALED])


def test_a_node_installs_the_list_with_its_own_settings(
    resolve: Resolve,
    wheels: Path,
    project: Path,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_wheel(wheels, "stranger", "1.2.0")
    bundle = pack(project, store, packages=resolve("stranger"))
    launch = Launch(
        training="trainings/x-0", nodes=1, devices=1, code=bundle.ref, sealed={"code_digest": bundle.digest}
    )
    # Another machine: another state folder, pip alone, and nothing of the spec's folder of wheels.
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(cache, "_in_use", {})
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "elsewhere"))
    for name in ("PIP", "UV"):
        monkeypatch.setenv(f"{name}_NO_INDEX", "1")
        monkeypatch.delenv(f"{name}_FIND_LINKS", raising=False)
    with pytest.raises(UsageError, match="stranger"):
        lay_out_inputs(store, launch, tmp_path / "first")
    for name in ("PIP", "UV"):
        monkeypatch.setenv(f"{name}_FIND_LINKS", str(wheels))
    inputs = lay_out_inputs(store, launch, tmp_path / "second")
    assert inputs.python.startswith(str(tmp_path / "elsewhere/environments"))
    subprocess.run([inputs.python, inputs.project / "net.py"], check=True)


def test_a_node_installs_what_the_list_leaves_out_of_a_build_of_torch(
    installer: str, resolve: Resolve, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(wheels, "stranger", "1.2.0", needs=["nvidia-stranger", "pyyaml"])
    write_wheel(wheels, "nvidia_stranger", "2.0")
    packages = resolve("stranger")
    assert "nvidia-stranger" not in packages.versions
    monkeypatch.setattr(cache, "_in_use", {})
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "elsewhere"))
    for name in ("PIP", "UV"):
        monkeypatch.setenv(f"{name}_NO_INDEX", "1")
        monkeypatch.setenv(f"{name}_FIND_LINKS", str(wheels))
    assert set(versions(packages_folder_in(cache.environment(packages)))) == {"stranger", "nvidia-stranger"}


def test_a_list_with_more_than_names_and_versions_is_refused(project: Path, store: Store, tmp_path: Path) -> None:
    bundle = pack(project, store, packages=ASKED)
    unpacked = unpack(store, bundle.ref, tmp_path / "out")
    (unpacked / INSTALL).write_text('{"schema_version": 1, "install": ["--index-url=https://evil"], "build": []}')
    with pytest.raises(CorruptError, match="does not hold the packages of an environment"):
        cache.interpreter(unpacked)


def test_what_installs_ends_with_the_process_that_asked(tmp_path: Path, home: Path) -> None:
    code = (
        "import threading, time\nfrom infra.environments.installer import run_tied\n"
        "threading.Thread(target=run_tied, daemon=True, args=(['/bin/sh', '-c', "
        f"'cd {tmp_path}; echo $$ > new; mv new pid; sleep 600'],)).start()\n"
        f"from pathlib import Path\nwhile not Path('{tmp_path}/pid').exists(): time.sleep(0.02)\n"
        "import os; os._exit(0)"
    )
    environ = {**os.environ, "PYTHONPATH": str(CODE_ROOT)}
    subprocess.run([cache.interpreter(None), "-c", code], check=True, env=environ, timeout=300)
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not is_alive(pid))
