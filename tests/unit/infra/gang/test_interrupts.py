"""Signals to the conductor, and two conductors at once: nothing is left, the lease is free, the work goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.gang.ledger import committed, list_checkpoints
from infra.gang.members import Progress
from infra.processes.processes import find_marked, has_ended, marked_env
from infra.store import Store, layout
from tests.support.conducting import ELSEWHERE, TRAINING, run, steps
from tests.support.pool import until
from tests.support.processes import identified

pytestmark = pytest.mark.warm

# Ranks that report, then ignore SIGTERM and leave a process in a session of its own.
HANGING = {"steps": 20, "faults": [{"generation": 0, "rank": rank, "step": 7, "kind": "hang"} for rank in (0, 1)]}


class Conductor:
    """A conductor in a session of its own, as a shell's foreground job has a process group of its own."""

    def __init__(
        self, store: Store, mark: str, fake: dict[str, Any], options: dict[str, Any], *, elsewhere: bool = False
    ) -> None:
        self.errors = Path(store.uri).parent / f"errors-{os.urandom(4).hex()}"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.conducting", store.uri, json.dumps(fake), json.dumps(options)],
                env=marked_env(mark, {ELSEWHERE: "1" if elsewhere else ""}),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def said(self, wanted: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The first line from here on that is wanted."""
        for line in self.process.stdout:
            if wanted(said := json.loads(line)):
                return said
        raise AssertionError(f"the conductor ended before: {self.errors.read_text()}")

    def end(self) -> int:
        self.process.stdout.read()
        self.process.stdout.close()
        return self.process.wait()


def is_answer(said: dict[str, Any]) -> bool:
    """Whether a conductor's line is its answer and not a report of its progress."""
    return "node_seconds" in said and "phase" not in said


MOMENTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "nodes started": lambda said: said["phase"] == "starting",
    "ranks starting": lambda said: said["phase"] == "training",
    "training": lambda said: said["checkpoint_step"] == 5,
}
SIGNALS = [
    ("nodes started", signal.SIGINT, True),
    ("training", signal.SIGINT, False),
    ("training", signal.SIGTERM, False),
    ("ranks starting", signal.SIGHUP, True),
    pytest.param("ranks starting", signal.SIGINT, True, marks=pytest.mark.sweep),
    pytest.param("training", signal.SIGINT, True, marks=pytest.mark.sweep),
]


@pytest.mark.parametrize(("moment", "number", "to_group"), SIGNALS)
def test_a_signal_ends_everything_and_frees_the_lease(
    moment: str, number: int, to_group: bool, store: Store, mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    conductor = Conductor(store, mark, HANGING, {})
    conductor.said(MOMENTS[moment])
    (os.killpg if to_group else os.kill)(conductor.process.pid, number)
    assert conductor.end() == 130
    assert find_marked(mark) == []
    assert "Traceback" not in conductor.errors.read_text()
    assert store.exists(layout.cancel(TRAINING, 0))
    assert store.pointer(layout.lease(TRAINING)).read().value["released"]
    assert not store.exists(layout.result(TRAINING))
    assert list(scratch.iterdir()) == []
    if moment == "training":
        outcome = run(store, {"steps": 20})
        assert (outcome.checkpoint.step, outcome.generations) == (20, 2)
        assert steps(store)[1, 0] == list(range(6, 21))


def test_impatient_signals_do_not_cut_the_cleanup_short(store: Store, mark: str) -> None:
    conductor = Conductor(store, mark, HANGING, {})
    conductor.said(MOMENTS["training"])
    while conductor.process.poll() is None:
        os.killpg(conductor.process.pid, signal.SIGINT)
        time.sleep(0.02)
    conductor.end()
    assert find_marked(mark) == []


TIMES = [0, *(pytest.param(turn, marks=pytest.mark.sweep) for turn in range(1, 5))]


@pytest.mark.parametrize("turn", TIMES)
def test_nodes_whose_conductor_was_killed_elsewhere_end_by_themselves(turn: int, store: Store, mark: str) -> None:
    # Longer than a busy machine holds the conductor up before it is killed.
    options = {"launch": {"lease_silence_s": 30}, "nodes": 2}
    hanging = {"steps": 20, "faults": [{"generation": 0, "rank": rank, "step": 7, "kind": "hang"} for rank in range(4)]}
    conductor = Conductor(store, mark, hanging, options, elsewhere=True)
    conductor.said(MOMENTS["training"])
    assert len(find_marked(mark)) > 6
    conductor.process.kill()
    conductor.end()
    until(lambda: not find_marked(mark))
    for node in (0, 1):
        error = store.read_json(layout.node_exit(TRAINING, 0, node))["error"]
        assert error["message"] == "The conductor of trainings/k-0 has not renewed its lease for 30 s."
    # The dead one's lease is not free; it is taken over once it stood still.
    waited: list[str] = []
    outcome = run(store, {"steps": 20}, patience_s=1, on_progress=lambda progress: waited.append(progress.phase))
    assert waited[0] == "waiting"
    assert (outcome.checkpoint.step, outcome.generations) == (20, 2)
    assert steps(store)[1, 0] == list(range(6, 21))


def test_nodes_of_an_older_generation_end_when_the_lease_has_a_new_owner(store: Store, mark: str) -> None:
    options = {"launch": {"lease_silence_s": 600}}
    conductor = Conductor(store, mark, HANGING, options, elsewhere=True)
    conductor.said(MOMENTS["training"])
    conductor.process.kill()
    conductor.end()
    assert find_marked(mark)
    assert run(store, {"steps": 20}, patience_s=1).generations == 2
    until(lambda: not find_marked(mark))
    assert not store.exists(layout.node_exit(TRAINING, 0, 0)), "a fenced node writes nothing"


def test_after_a_killed_conductor_of_this_machine_the_next_one_trains_on_at_once(store: Store, mark: str) -> None:
    """Both the lease and the nodes are free at once, and what the nodes sealed meanwhile counts."""
    options = {"launch": {"lease_silence_s": 600}, "nodes": 2}
    conductor = Conductor(store, mark, {"steps": 20_000, "step_s": 0.2}, options)
    conductor.said(MOMENTS["training"])
    known_as = identified(conductor.process)
    # Between two checkpoints that it commits, it is held up, and the ranks seal another.
    conductor.process.send_signal(signal.SIGSTOP)
    newest = known = committed(store, TRAINING)[0][-1].step
    while newest < known + 10:
        newest = max(found.step for found in list_checkpoints(store, TRAINING))
        time.sleep(0.01)
    conductor.process.kill()
    until(lambda: has_ended(known_as))
    killed = time.monotonic()
    said: list[Progress] = []
    first_step = []

    def hear(progress: Progress) -> None:
        said.append(progress)
        if progress.generation == 1 and progress.phase == "training" and progress.step and not first_step:
            first_step.append(time.monotonic() - killed)

    steps_in_all = newest + 1000
    fake = {"steps": steps_in_all, "step_s": 0, "every": 100}
    outcome = run(store, fake, on_progress=hear, patience_s=600, **options)
    conductor.end()
    assert (outcome.checkpoint.step, outcome.generations) == (steps_in_all, 2)
    assert "waiting" not in {one.phase for one in said}
    [adopted] = [one for one in said if "sealed but not committed by the previous conductor" in one.sentence]
    assert adopted.step >= newest
    assert steps(store)[1, 0][0] == adopted.step + 1
    done_until_they_ended = max(steps(store)[0, 0]) - adopted.step
    assert done_until_they_ended <= 5 + 600, "an interval, and 2 minutes; their lease would have been over after ten"
    print(f"next step {first_step[0]:.1f} s after SIGKILL of the conductor")
    assert first_step[0] < 300, "the patience with a lease is twice that"
    until(lambda: not find_marked(mark))


@pytest.mark.parametrize("turn", TIMES)
def test_a_second_conductor_attaches_and_returns_the_firsts_result(turn: int, store: Store, mark: str) -> None:
    all_wait = Path(store.uri).parent / "all-wait"
    fake = {"steps": 60, "step_s": 0.05, "until": str(all_wait)}
    first = Conductor(store, mark, fake, {})
    first.said(MOMENTS["training"])
    second = Conductor(store, mark, fake, {"patience_s": 600})
    second.said(lambda said: said["phase"] == "waiting")
    # A third one that is interrupted while it waits leaves the others alone.
    third = Conductor(store, mark, fake, {"patience_s": 600})
    third.said(lambda said: said["phase"] == "waiting")
    third.process.send_signal(signal.SIGINT)
    assert third.end() == 130
    all_wait.touch()
    assert first.said(is_answer)["step"] == 60
    assert second.said(is_answer) == {"step": 60, "generations": 1, "node_seconds": 0.0}
    assert (first.end(), second.end()) == (0, 0)
    assert not store.exists(layout.launch(TRAINING, 1))
    assert steps(store) == {(0, rank): list(range(1, 61)) for rank in (0, 1)}


@pytest.mark.parametrize("turn", TIMES)
def test_a_conductor_that_was_stopped_changes_nothing_when_it_wakes(turn: int, store: Store, mark: str) -> None:
    """Stopped while its gang trains, and woken up, a little later each time, once its successor's gang trains."""
    # Its gang waits for its last step, however long a busy machine takes to start the second.
    first = Conductor(store, mark, {"steps": 8, "until": str(Path(store.uri).parent / "never")}, {})
    first.said(MOMENTS["training"])
    first.process.send_signal(signal.SIGSTOP)
    fake = {"steps": 60, "step_s": 0.1}
    second = Conductor(store, mark, fake, {"patience_s": 3})
    second.said(lambda said: said["generation"] == 1 and said["step"] > 15 + 8 * turn)
    first.process.send_signal(signal.SIGCONT)
    assert first.said(lambda said: said.get("cause"))["cause"] == "fenced"
    assert second.said(is_answer)["step"] == 60
    assert (first.end(), second.end()) == (5, 0)
    taken = steps(store)[1, 0]
    assert taken == list(range(taken[0], 61))
    assert not store.exists(layout.launch(TRAINING, 2))
    result = store.read_json(layout.result(TRAINING))
    assert (result["step"], result["generation"]) == (60, 1)


def test_a_waiting_conductor_takes_over_when_the_first_is_cancelled(store: Store, mark: str) -> None:
    first = Conductor(store, mark, HANGING, {})
    first.said(MOMENTS["training"])
    second = Conductor(store, mark, {"steps": 20}, {"patience_s": 600})
    second.said(lambda said: said["phase"] == "waiting")
    first.process.send_signal(signal.SIGINT)
    assert first.end() == 130
    assert second.said(is_answer)["step"] == 20
    assert second.end() == 0
    assert steps(store)[1, 0] == list(range(6, 21))
