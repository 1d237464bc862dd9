"""Ctrl-C at any moment of a run: exit 130, no process left, nothing half-sealed, and `resume` goes on to the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra.processes.processes import MARK, kill_marked, new_mark
from infra.store import Store, open_store
from tests.support.tiny import SPEC, write_project

# An unmodified module that says when it is somewhere and stays there while a file is: moments that can be waited for.
MODEL = """\
import time
from pathlib import Path

import lightning as L
import torch
from torch import nn


class Net(L.LightningModule):
    def __init__(self, place: str):
        super().__init__()
        self.place = Path(place)
        self.net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
        # Large enough that writing it takes a moment.
        self.register_buffer("ballast", torch.zeros(4_000_000))

    def stay(self, where):
        if (self.place / f"stay-{where}").exists():
            (self.place / f"at-{where}").touch()
        while (self.place / f"stay-{where}").exists():
            time.sleep(0.01)

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        if self.global_step == 20:
            self.stay("step")
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def on_save_checkpoint(self, checkpoint):
        if self.global_step >= 30:
            self.stay("save")

    def predict_step(self, batch, batch_idx):
        self.stay("predict")
        return self(batch[0])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.05)
"""


@dataclass
class Line:
    """A project, its store, and the run in it that is stopped again and again."""

    folder: Path
    mark: str
    generations: int = 0
    pid: int = 0

    @property
    def store(self) -> Path:
        return self.folder / ".trainwright"

    @property
    def run_id(self) -> str:
        [run_id] = os.listdir(self.store / "runs")
        return run_id

    def begin(self) -> subprocess.Popen[str]:
        """Start or resume the run, in a process group of its own as a terminal gives each command."""
        command = ["run", str(self.folder / "pipeline.yaml")]
        if (self.store / "runs").exists():
            command = ["resume", self.run_id, "--store", str(self.store)]
        self.generations = len(self.kept("trainings/*/g*/launch.json"))
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), MARK: self.mark, "TMPDIR": str(self.tmp)}
        with (self.folder / "log.txt").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "flows.cli", *command, "--json"],
                env=env, stdout=subprocess.PIPE, stderr=log, text=True, process_group=0,
            )  # fmt: skip
        self.pid = process.pid
        return process

    @property
    def tmp(self) -> Path:
        folder = self.folder.parent / "tmp"
        folder.mkdir(exist_ok=True)
        return folder

    def log(self) -> str:
        return (self.folder / "log.txt").read_text()

    def kept(self, pattern: str) -> list[Path]:
        """Files of the store, sorted."""
        return sorted(self.store.glob(pattern))

    def catches(self, number: int) -> bool:
        """Whether the process has a handler for a signal."""
        caught = Path(f"/proc/{self.pid}/status").read_text().partition("SigCgt:")[2].split()[0]
        return bool(int(caught, 16) >> (number - 1) & 1)

    def stage_done(self, stage: str) -> bool:
        return bool(self.kept(f"runs/*/stages/{stage}.json"))

    def stay(self, where: str) -> None:
        (self.folder.parent / f"stay-{where}").touch()

    def is_at(self, where: str) -> bool:
        return (self.folder.parent / f"at-{where}").exists()

    def generation(self, file: str) -> bool:
        """Whether the generation that this process launched has a file."""
        return bool(self.kept(f"trainings/*/g{self.generations}/{file}"))

    def leave(self) -> None:
        for note in self.folder.parent.glob("*-*"):
            note.unlink()


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """One run for all moments below, in their order: each goes on where the one before was stopped."""
    yield from a_line(tmp_path_factory.mktemp("interrupt"))


def a_line(folder: Path) -> Iterator[Line]:
    train = {
        **SPEC["train"],
        "lightning": {
            "model": {"class_path": "net.Net", "init_args": {"place": str(folder)}},
            "trainer": {"max_epochs": 3},
        },
        "checkpoint": {"every_steps": 10},
    }
    write_project(folder / "project", {"train": train})
    (folder / "project" / "net.py").write_text(MODEL)
    line = Line(folder / "project", new_mark())
    yield line
    kill_marked(line.mark)


def marked(mark: str) -> dict[int, str]:
    """Live processes that carry the mark, found without Trainwright's own search: id and command."""
    found = {}
    for process in psutil.process_iter():
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and mark in process.environ().get(MARK, "") and process.pid != os.getpid():
                found[process.pid] = " ".join(process.cmdline())
        except (psutil.Error, OSError):
            continue
    return found


def writes_a_checkpoint(line: Line) -> bool:
    """Whether a checkpoint of the generation that this process launched lies there without its manifest."""
    folders = line.kept(f"trainings/*/checkpoints/*-g{line.generations}")
    return any(not (folder / "manifest.json").exists() for folder in folders)


@dataclass(frozen=True)
class Moment:
    """When to stop: `stay` is asked of the module before the start; `there` says that the moment has come.

    With a `stay` that comes after the moment, the run has not ended however late the signal is.
    """

    name: str
    there: Callable[[Line], bool]
    stay: str = ""
    # A moment so short that the run may be over before the signal is.
    brief: bool = False


MOMENTS = [
    Moment("importing", lambda line: True, stay="step"),
    Moment("connecting", lambda line: "Prefect UI" in line.log(), stay="step"),
    Moment("validate", lambda line: bool(line.kept("runs/*/resolved.json")), stay="step"),
    Moment("shard", lambda line: line.stage_done("validate"), stay="step"),
    Moment("before the roll-call", lambda line: line.generation("launch.json"), stay="step"),
    Moment("ranks start", lambda line: line.generation("rollcall.json"), stay="step"),
    Moment("in a step", lambda line: line.is_at("step"), stay="step"),
    Moment("before a checkpoint", lambda line: line.is_at("save"), stay="save"),
    # However late one looks, the signal comes: if no checkpoint is being written any more, a little later.
    Moment("in a checkpoint", lambda line: writes_a_checkpoint(line) or line.is_at("predict"), stay="predict"),
    Moment("verify", lambda line: line.stage_done("train"), stay="predict"),
    Moment("evaluate", lambda line: line.is_at("predict"), stay="predict"),
    Moment("promote", lambda line: line.stage_done("evaluate"), brief=True),
]
# Each is close to a moment that is tried by default.
NEAR_OTHERS = {"validate", "shard", "before the roll-call", "ranks start", "before a checkpoint", "verify", "evaluate"}


def stop(line: Line, moment: Moment, whole_group: bool) -> None:
    """Begin, wait for the moment, send SIGINT, and check all that must hold afterwards."""
    if moment.stay:
        line.stay(moment.stay)
    # Retention may remove a checkpoint; nothing else that is sealed ever goes.
    known = set(line.kept("*/*/manifest.json"))
    process = line.begin()
    own = psutil.Process(process.pid)
    # What a moment looks for may lie there from the process before, which was stopped a little later than asked.
    while not (line.catches(signal.SIGTERM) and moment.there(line)):
        assert process.poll() is None, f"it ended before {moment.name}: {line.log()}"
        time.sleep(0.002)
    descendants = own.children(recursive=True)
    os.killpg(process.pid, signal.SIGINT) if whole_group else process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=480)
    left = marked(line.mark)
    alive = [one for one in descendants if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    line.leave()
    assert left == {}, line.log()
    assert [one for one in alive if MARK not in one.environ()] == [], line.log()
    assert stdout, (process.returncode, line.log())
    told = json.loads(stdout)
    if moment.brief and process.returncode == 0:
        assert told["verdict"] == "promoted"
    else:
        assert process.returncode == 130, line.log()
        assert told["exit_code"] == 130
        assert told["error"]["cause"] == "cancelled"
        assert "Traceback" not in line.log()
        assert line.log().count("trainwright: ") == 1
    nothing_half_sealed(line, known)


def nothing_half_sealed(line: Line, known: set[Path]) -> None:
    """Every manifest verifies, those of before are there, no lease is held, no pointer points at what is not sealed."""
    if not line.store.exists():
        return
    store = open_store(str(line.store), create=False)
    manifests = line.kept("**/manifest.json")
    for manifest in manifests:
        store.verify(manifest.parent.relative_to(line.store).as_posix())
    assert known <= set(manifests)
    for pointer in [path for area in ("trainings", "aliases") for path in line.kept(f"{area}/*/*") if path.is_file()]:
        if pointer.name == "lease":
            assert value_of(store, pointer)["released"], pointer.read_text()
        elif pointer.name != "result.json":
            target = ref_in(value_of(store, pointer))
            assert not target or store.verify(target)
    assert [path.name for path in line.tmp.glob("trainwright-*")] == []


def value_of(store: Store, pointer: Path) -> Any:
    versioned = store.pointer(pointer.relative_to(store.uri).as_posix()).read()
    return versioned.value


def ref_in(value: Any) -> str:
    """The first URI that a pointer's value holds."""
    if isinstance(value, dict):
        if "uri" in value and "seal" in value:
            return str(value["uri"])
        return next((found for one in value.values() if (found := ref_in(one))), "")
    return ""


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, id=moment.name, marks=[pytest.mark.slow] if moment.name in NEAR_OTHERS else [])
        for number, moment in enumerate(MOMENTS)
    ],
)
def test_ctrl_c(number: int, line: Line) -> None:
    # A terminal sends it to the whole group; `kill -INT` and many supervisors to the process alone.
    stop(line, MOMENTS[number], whole_group=number % 2 == 0)


def test_what_was_stopped_everywhere_ends_promoted(line: Line) -> None:
    process = line.begin()
    report = json.loads(process.communicate(timeout=480)[0])
    assert (process.returncode, report["verdict"]) == (0, "promoted"), line.log()
    assert marked(line.mark) == {}
    assert report["metrics"]["accuracy"] >= 0.8
