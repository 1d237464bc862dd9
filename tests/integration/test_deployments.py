"""`up`, `prefect deploy --all`, a run, `down`: with a real server and worker, from a checkout in any folder."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.processes.processes import find_marked, is_alive
from tests.support.pool import password_in

# In place of the line: it says where it was run, and with `window=long` goes on for ever beside a child that no
# signal to the flow reaches.
FLOW = """
import json, os, subprocess, sys, time
from pathlib import Path
from prefect import flow

@flow(name="retrain")
def retrain(spec: str, window: str | None = None) -> None:
    facts = {"spec": spec, "found": Path(spec).is_file(), "cwd": os.getcwd(), "file": __file__}
    if window == "long":
        child = [sys.executable, "-c", "import time; time.sleep(600)"]
        facts["pids"] = [os.getpid(), subprocess.Popen(child, start_new_session=True).pid]
    draft = Path("facts.draft")
    draft.write_text(json.dumps(facts))
    draft.replace("facts.json")
    while window == "long":
        time.sleep(0.1)

@flow(name="resume")
def resume(run_id: str, store: str | None = None) -> None:
    pass
"""
REAPER = """
from prefect import flow

@flow(name="reap")
def reap(store: str | None = None, pool: str = "trainwright") -> None:
    pass
"""
UP = "import json; from infra.orchestrator.lifecycle import up; print(json.dumps(up().url))"
DOWN = "import json; from infra.orchestrator.lifecycle import down; print(json.dumps(down()))"


class Checkout:
    """A copy of what `prefect deploy` reads, in a folder with a blank in its name, with a state folder of its own."""

    def __init__(self, folder: Path, home: Path, repository: Path) -> None:
        self.folder, self.home = folder, home
        (folder / "flows").mkdir(parents=True)
        (folder / "flows" / "__init__.py").touch()
        (folder / "flows" / "retrain.py").write_text(FLOW)
        (folder / "flows" / "reap.py").write_text(REAPER)
        shutil.copy(repository / "prefect.yaml", folder)
        for spec in repository.glob("examples/*/pipeline.yaml"):
            copy = folder / spec.relative_to(repository)
            copy.parent.mkdir(parents=True)
            shutil.copy(spec, copy)
        self.env = {
            **os.environ,
            "TRAINWRIGHT_HOME": str(home),
            "PYTHONPATH": f"{folder}{os.pathsep}{repository}",
            # As when a program, not a shell, calls us in another folder than its own.
            "PWD": str(repository),
        }

    def call(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def prefect(self, *arguments: str) -> str:
        return self.call(sys.executable, "-m", "prefect", *arguments)

    def ask(self, code: str) -> Any:
        return json.loads(self.call(sys.executable, "-P", "-c", code).splitlines()[-1])

    def facts(self) -> dict[str, Any]:
        """What the flow wrote down, once it has."""
        path = self.folder / "facts.json"
        while not path.exists():
            time.sleep(0.05)
        found = json.loads(path.read_text())
        path.unlink()
        return found

    def worker(self) -> dict[str, Any]:
        return json.loads((self.home / "worker.json").read_text())

    def states(self) -> list[str]:
        with sqlite3.connect(self.home / "prefect" / "prefect.db") as database:
            rows = database.execute("select state_name from flow_run where not auto_scheduled order by created")
            return [name for (name,) in rows]


@pytest.fixture
def checkout(tmp_path: Path, repository: Path) -> Iterator[Checkout]:
    checkout = Checkout(tmp_path / "a clone", tmp_path / "home", repository)
    yield checkout
    checkout.ask(DOWN)


@pytest.mark.slow  # test_deployed_line.py walks the same way with the real flow
def test_a_checkout_is_deployed_run_and_taken_down_with_nothing_else(checkout: Checkout) -> None:
    url = checkout.ask(UP)
    password = password_in(checkout.home)
    worker = checkout.worker()
    assert checkout.ask(UP) == url
    assert checkout.worker() == worker, "a second `up` starts no second worker"

    deployed = checkout.prefect("deploy", "--all")
    specs = sorted(path.relative_to(checkout.folder) for path in checkout.folder.glob("examples/*/pipeline.yaml"))
    # Resume, the reaper and the day's page beside them; the example for a person's own model is not deployed.
    assert deployed.count("successfully created") == len(specs) + 2
    assert "start a worker" not in deployed

    checkout.prefect("deployment", "run", "retrain/digits", "--watch")
    folder = str(checkout.folder.resolve())
    facts = checkout.facts()
    assert facts == {
        "spec": "examples/digits/pipeline.yaml",
        "found": True,
        "cwd": folder,
        "file": f"{folder}/flows/retrain.py",
    }

    checkout.prefect("deployment", "run", "retrain/stdlib-gpt", "-p", "window=long")
    pids = checkout.facts()["pids"]
    assert all(is_alive(pid) for pid in pids)
    stopped = checkout.ask(DOWN)
    assert not any(is_alive(pid) for pid in pids)
    assert find_marked(worker["mark"]) == []
    assert stopped[0].startswith("flow run ")
    assert stopped[1:] == ["worker", f"Prefect server at {url}"]
    assert checkout.states() == ["Completed", "Cancelled"]
    assert not (checkout.folder / "prefect.toml").exists()
    # Neither in logs nor in Prefect's database: states, parameters, variables, what the runs logged.
    spelt = (password.encode(), base64.b64encode(password.encode()))
    places = [path for folder in (checkout.home, checkout.folder) for path in folder.rglob("*") if path.is_file()]
    assert checkout.home / "prefect" / "prefect.db" in places
    assert not [path for path in places if any(one in path.read_bytes() for one in spelt)]
    assert checkout.ask(DOWN) == []
