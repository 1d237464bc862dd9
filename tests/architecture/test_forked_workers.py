"""Workers of pytest-xdist are forked once the tests are imported: see `tests/support/forked_workers.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# Each file says what it runs in; what it draws at random must not be what another worker draws.
TEST = """
import os, random
from pathlib import Path

IMPORTED_BY = os.getpid()

def test_worker():
    line = Path("/proc/self/cmdline").read_text()
    with open({seen!r}, "a") as file:
        print("forked_workers" in line, IMPORTED_BY == os.getppid(), random.random(), file=file)
    assert os.environ["TRAINWRIGHT_HOME"].startswith({state!r}), os.environ["TRAINWRIGHT_HOME"]
"""


def test_workers_are_forked_from_a_process_that_has_imported_their_tests(tmp_path: Path, repository: Path) -> None:
    seen, state = tmp_path / "seen", tmp_path / "state"
    state.mkdir()
    for name in "abcd":
        (tmp_path / f"test_{name}.py").write_text(TEST.format(seen=str(seen), state=str(state)))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "WARM_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", "pyproject.toml", "-p", "tests.conftest", "-n2", "--dist=load"]
        + [str(file) for file in sorted(tmp_path.glob("test_*.py"))],
        cwd=repository, env={**environment, "TMPDIR": str(state)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "4 passed" in done.stdout, done.stdout + done.stderr
    workers, importers, drawn = zip(*(line.split() for line in seen.read_text().splitlines()), strict=True)
    assert set(workers) == set(importers) == {"True"}
    assert len(set(drawn)) == 4
