"""What Slurm is asked for, and what its answers mean. (With a real one: tests/integration/test_slurm.py.)"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from data_contracts.errors import Cancelled, NodeLost, OutOfMemory, Preempted, StorageUnavailable, UsageError
from data_contracts.messages.gang import ConductorAddress, Launch
from infra.gang.hub import Ended
from infra.gang.membership import Placement
from infra.launchers import slurm as module
from infra.launchers.slurm import SlurmLauncher, SlurmNodes
from infra.store import Store
from tests.support.refusals import refusal

TRAINING = "trainings/k-0"


class Slurm:
    """Answers commands as it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.answers: dict[str, Any] = {"sbatch": "7\n", "sinfo": "(null)\n"}
        self.answers["scontrol"] = "SlurmctldHost[0] = ctl(10.0.0.1)\n"
        self.job = ""

    def __call__(self, *command: str, **_: Any) -> str:
        self.asked.append(command)
        if command[0] == "squeue":
            return self.job
        answer = self.answers[command[0]]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    slurm = Slurm()
    monkeypatch.setattr(module, "slurm", slurm)
    monkeypatch.setattr(module, "own_address", lambda peers: peers[0])
    monkeypatch.setattr(module, "ASK_S", 3600.0)
    return slurm


@pytest.fixture
def nodes(slurm: Slurm, store: Store) -> Callable[..., SlurmNodes]:
    """The nodes of a generation of three, of which two are enough, unless its launch says otherwise."""

    def make(variables: dict[str, Any] | None = None, **launch: Any) -> SlurmNodes:
        hub: Any = type("Hub", (), {"left": set(), "news": lambda self: []})()
        told = Launch(
            **{"training": TRAINING, "nodes": 3, "min_nodes": 2, "devices": 1, **launch},
            conductor=ConductorAddress(address="10.0.0.9", port=20_000, certificate=""),
        )
        return SlurmLauncher(Placement(section="train", pool="gpu", job_variables=variables or {}))(store, told, hub)

    return make


def test_a_job_is_asked_for_as_the_spec_says(slurm: Slurm) -> None:
    placement = Placement(
        section="train",
        pool="gpu",
        queue="high",
        job_variables={"account": "vision", "time": "12:00:00", "nice": 5},
        labels={"team": "vision", "cost": "a b"},
    )
    launcher = SlurmLauncher(placement)
    assert launcher.address == "slurm://10.0.0.1:6817"
    assert launcher.options(2, 4) == {
        "partition": "gpu",
        "nodes": "2-4",
        "qos": "high",
        "comment": "cost=a b,team=vision",
        "account": "vision",
        "time": "12:00:00",
        "nice": "5",
    }


@pytest.mark.parametrize(
    ("gres", "given", "asked"),
    [("gpu:h100:8\n", {}, "8"), ("(null)\n", {}, None), ("gpu:8\n", {"gres": "gpu:4"}, None)],
)
def test_gpus_are_asked_for_where_there_are_some(
    gres: str, given: dict[str, str], asked: str | None, slurm: Slurm
) -> None:
    slurm.answers["sinfo"] = gres
    placement = Placement(section="train", pool="gpu", devices=8, needs_gpus=True, job_variables=given)
    assert SlurmLauncher(placement).options(1, 1).get("gpus-per-node") == asked


def test_machines_that_the_spec_excludes_stay_excluded(slurm: Slurm, nodes: Callable[..., SlurmNodes]) -> None:
    slurm.answers["sinfo"] = "n0\nn1\n"
    nodes({"exclude": "n7"}, left_out=["n1"]).start([0, 1, 2])
    assert "--exclude=n7,n1" in slurm.asked[-1]


def test_a_node_gets_nothing_that_holds_only_where_the_conductor_is(
    slurm: Slurm, nodes: Callable[..., SlurmNodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("TRAINWRIGHT_ADDRESS", "TRAINWRIGHT_NODE", "SLURM_JOB_ID", "SBATCH_ACCOUNT", "SLURM_CONF", "MINE")
    for name in (*names, "SOME_TOKEN"):
        monkeypatch.setenv(name, "x")
    passed = nodes()._environ()
    assert [name for name in (*names, "SOME_TOKEN") if name in passed] == ["SLURM_CONF", "MINE"]
    assert passed["TRAINWRIGHT_CONDUCTOR"] == "wss://10.0.0.9:20000"


@pytest.mark.parametrize(
    "name", ["partition", "qos", "signal", "wrap", "nodes", "output", "export", "--account", "Account", "a=b"]
)
def test_an_option_that_is_not_the_specs_is_refused(name: str, slurm: Slurm) -> None:
    placement = Placement(section="verify", pool="gpu", job_variables={name: "x"})
    said = refusal(UsageError, SlurmLauncher, placement)
    assert said.startswith(f"verify.job_variables.{name}: is not an option of sbatch that can be set here.")


def test_a_job_is_queued_once_even_if_its_number_was_lost(slurm: Slurm, nodes: Callable[..., SlurmNodes]) -> None:
    first = nodes(left_out=["n1", "n2", "a host of ssh"])
    slurm.answers["sinfo"] = "n0\nn1\nn1\nn2\n"
    slurm.answers["sbatch"] = StorageUnavailable("no answer")
    with pytest.raises(StorageUnavailable):
        first.start([0, 1, 2])
    assert "--exclude=n1,n2" in slurm.asked[-1]
    slurm.job = "41\n"
    first.start([0, 1, 2])
    assert first.job == "41"
    assert [command[0] for command in slurm.asked].count("sbatch") == 1
    assert f"--name={first.name}" in slurm.asked[-1]
    assert "--me" in slurm.asked[-1], "not another user's"
    assert first.name != nodes(generation=1).name


def test_a_job_that_a_dead_conductor_left_in_the_queue_is_cancelled(
    slurm: Slurm, nodes: Callable[..., SlurmNodes]
) -> None:
    slurm.answers["scancel"] = ""
    nodes(generation=3).start([0, 1, 2])
    assert ("scancel", "--me", f"--name={nodes(generation=2).name}") in slurm.asked


STATES = [
    ("NODE_FAIL", NodeLost),
    ("FAILED", NodeLost),
    ("COMPLETED", NodeLost),
    ("PREEMPTED", Preempted),
    ("TIMEOUT", Preempted),
    ("OUT_OF_MEMORY", OutOfMemory),
    ("CANCELLED", Cancelled),
]


@pytest.mark.parametrize(("state", "cause"), STATES)
def test_the_end_of_a_job_is_that_of_its_nodes(
    state: str, cause: type[Exception], slurm: Slurm, nodes: Callable[..., SlurmNodes]
) -> None:
    mine = nodes()
    mine.start([0, 1, 2])
    slurm.job = f"{state} 3 NodeDown\n"
    mine._look()
    assert mine.ended() == dict.fromkeys(
        range(3), Ended(f"ended as its Slurm job 7 did: {state} (NodeDown)", cause, state == "NODE_FAIL")
    )


@pytest.mark.parametrize(
    ("line", "state"),
    [("", "PENDING"), ("a notice of the site\nRUNNING 3 None\n", "RUNNING"), ("nothing that fits", "PENDING")],
)
def test_what_a_site_says_besides_is_passed_over(
    line: str, state: str, slurm: Slurm, nodes: Callable[..., SlurmNodes]
) -> None:
    slurm.answers["sbatch"] = "a notice of the site\n7;cluster\n"
    mine = nodes()
    mine.start([0, 1, 2])
    slurm.job = line
    mine._look()
    assert mine.status(0) == f"its Slurm job 7 is {state}"


def test_a_job_that_slurm_no_longer_knows_is_over(
    slurm: Slurm, nodes: Callable[..., SlurmNodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = nodes()
    mine.start([0, 1, 2])

    def unknown(*command: str, **_: Any) -> str:
        raise UsageError("Slurm refuses the job: slurm_load_jobs error: Invalid job id specified")

    monkeypatch.setattr(module, "slurm", unknown)
    mine._look()
    assert mine.ended()[0].cause is NodeLost
    assert mine.waits() == ""


def test_a_job_that_slurm_suspends_is_preempted(slurm: Slurm, nodes: Callable[..., SlurmNodes]) -> None:
    mine = nodes()
    mine.start([0, 1, 2])
    slurm.job = "SUSPENDED 3 None\n"
    mine._look()
    assert mine.ended() == dict.fromkeys(range(3), Ended("was stopped with its Slurm job 7: SUSPENDED", Preempted))


def test_a_job_waits_and_then_has_as_many_machines_as_slurm_gave(
    slurm: Slurm, nodes: Callable[..., SlurmNodes]
) -> None:
    mine = nodes()
    assert mine.waits() == ""
    mine.start([0, 1, 2])
    for told, waits in [("", "PENDING"), ("PENDING 2 Resources\n", "PENDING (Resources)")]:
        slurm.job = told
        mine._look()
        assert (mine.waits(), mine.ended()) == (f"its Slurm job 7 is {waits}", {})
    slurm.job = "RUNNING 2 None\n"
    mine._look()
    assert mine.waits() == ""
    assert mine.ended() == {2: Ended("was not started: Slurm gave its job 7 2 of 3 machines")}
    # As while slurmctld restarts: what is known stays.
    slurm.job = ""
    mine._look()
    assert mine.status(0) == "its Slurm job 7 is RUNNING"


def test_a_job_that_slurm_does_not_end_is_said(
    slurm: Slurm, nodes: Callable[..., SlurmNodes], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = iter(range(0, 10_000, 5))
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    mine = nodes()
    mine.start([0, 1, 2])
    slurm.job = "RUNNING 3 None\n"
    slurm.answers["scancel"] = StorageUnavailable("no answer")
    mine.end(range(3))
    assert "Slurm did not end the job 7: it is RUNNING" in caplog.text
