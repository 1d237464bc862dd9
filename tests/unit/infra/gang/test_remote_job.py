"""A piece of work on a node: what the child answers or raises, and what is laid out for it there."""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import CorruptError, GangIncomplete, NodeLost
from data_contracts.handoffs import Ref
from data_contracts.messages.children import EVALUATE, VERIFY, EvaluateRequest, RemoteJob, VerifyRequest
from data_contracts.messages.gang import Latest, Launch
from data_contracts.pipeline_spec import RetrySpec
from infra.code_bundle import pack
from infra.gang import remote_job as remote_job_module
from infra.gang.ledger import generation_records, roster
from infra.gang.members import Progress
from infra.gang.node import LocalLauncher, LocalNodes
from infra.gang.remote_job import RemoteJobRequest, lay_out, run_remote_job
from infra.store import Store, layout
from tests.support.child_module import CHILD, Ask, Told
from tests.support.scripted_nodes import Launching, SilentNode, Slots, scripted

pytestmark = [pytest.mark.warm, pytest.mark.usefixtures("mark")]

URI = layout.remote_job("20260101-000000-abc", "verify-1")


@pytest.fixture(autouse=True)
def long_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that a busy machine holds up is not lost."""
    monkeypatch.setattr(remote_job_module, "Launch", partial(Launch, silence_s=120))


@pytest.fixture
def code(store: Store, tmp_path: Path) -> Ref:
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").touch()
    (project / "net.py").write_text("HERE = True\n")
    return pack(project, store).ref


def remote_job(store: Store, request: dict[str, Any], code: Ref, **changes: Any) -> Told:
    asked: dict[str, Any] = {
        "holder": "test",
        "retry": RetrySpec(),
        "rollcall_timeout_s": 180,
        "launcher": LocalLauncher(Slots(full=1)),
        "on_progress": lambda progress: None,
        "on_spent": lambda seconds: None,
        **changes,
    }
    job = RemoteJob.of(CHILD.module, Ask(code=code, **request))
    return Told.from_json(run_remote_job(store, RemoteJobRequest(uri=URI, job=job, **asked)))


def test_it_waits_for_room_does_the_work_in_the_project_and_answers(store: Store, code: Ref) -> None:
    slots, said = Slots(full=1), list[Progress]()
    answer = remote_job(store, {"do": "answer"}, code, launcher=LocalLauncher(slots), on_progress=said.append)
    assert str(Ask.from_json(answer.got).project) == answer.project == answer.cwd
    assert not Path(answer.project).exists(), "the node took its scratch with it"
    assert (said[0].phase, said[0].sentence) == ("waiting", "1 of 2 nodes is free")
    assert slots.asked == [1, 1, "back"]
    assert store.pointer(layout.lease(URI)).read().value["released"]
    # Gone on with, the same piece of work is another generation.
    remote_job(store, {"do": "answer"}, code)
    assert [status.generation for status in roster(generation_records(store, URI))] == [1, 0]


def test_what_the_child_raises_is_raised_here(store: Store, code: Ref) -> None:
    slots = Slots()
    with pytest.raises(CorruptError, match="as asked") as caught:
        remote_job(store, {"do": "raise", "error": "CorruptError"}, code, launcher=LocalLauncher(slots))
    assert caught.value.user_traceback == "Traceback: here"
    assert slots.asked == [1, "back"]


def failing_first() -> Launching:
    """Nodes of which the first is killed as soon as it was started."""
    left = [1]

    class Nodes(LocalNodes):
        def start(self, nodes: Collection[int]) -> None:
            super().start(nodes)
            if left:
                self.nodes[0]._process.kill()
                left.pop()

    return Launching(Nodes)


def test_a_lost_node_is_replaced_within_its_budget(store: Store, code: Ref) -> None:
    said: list[Progress] = []
    assert remote_job(store, {"do": "answer"}, code, launcher=failing_first(), on_progress=said.append).got
    assert any("tried again (node_lost)" in progress.sentence for progress in said)


def test_the_next_process_has_what_is_left_of_the_budget_until_a_failure_is_reported(store: Store, code: Ref) -> None:
    def killed_by(progress: Progress) -> None:
        if "tried again" in progress.sentence:
            raise KeyboardInterrupt

    def used() -> dict[str, int]:
        latest = store.pointer(layout.latest(URI)).read()
        return Latest.model_validate(latest.value).retries.used

    asked: dict[str, Any] = {"retry": RetrySpec(node_lost=1), "on_progress": killed_by}
    with pytest.raises(KeyboardInterrupt):
        remote_job(store, {}, code, launcher=failing_first(), **asked)
    assert used() == {"node_lost": 1}
    with pytest.raises(NodeLost, match=r"and retry\.node_lost = 1 is spent\."):
        remote_job(store, {}, code, launcher=failing_first(), **asked)
    assert used() == {}


def test_every_node_that_was_used_is_paid_for_whatever_came_of_it(store: Store, code: Ref) -> None:
    spent: list[float] = []
    remote_job(store, {"do": "answer"}, code, launcher=failing_first(), on_spent=spent.append)
    with pytest.raises(CorruptError):
        remote_job(store, {"do": "raise", "error": "CorruptError"}, code, on_spent=spent.append)
    lived = [store.read_json(layout.node_exit(URI, number, 0)) for number in (1, 2)]
    assert len(spent) == 3
    assert spent[0] > 0
    for seconds, exit_ in zip(spent[1:], lived, strict=True):
        assert seconds > exit_["released"] - exit_["started"]


def test_a_node_that_never_comes_is_said(store: Store, code: Ref) -> None:
    absent = SilentNode("its run is Late")
    with pytest.raises(GangIncomplete, match=r"Node 0 \(its run is Late\) of 1 had not answered"):
        remote_job(store, {}, code, launcher=scripted(lambda generation, node: absent), rollcall_timeout_s=0.2)


def test_what_a_request_needs_is_laid_out_once_and_the_first_is_the_project(store: Store, tmp_path: Path) -> None:
    first, second = (Ref(uri=f"code/{name}", id=name * 64, seal=name * 64) for name in "ab")
    asked: list[str] = []

    def unpack(ref: Ref) -> Path:
        asked.append(ref.uri)
        return tmp_path / ref.id[0]

    here = Ask(code=first).at(lay_out(store, [first, second, first], unpack))
    assert asked == [first.uri, second.uri]
    assert (here.project, here.path(second)) == (tmp_path / "a", tmp_path / "b")


REF = {"uri": "code/a", "id": "a" * 64, "seal": "b" * 64}
OTHER = {"uri": "code/c", "id": "c" * 64, "seal": "b" * 64}


def test_a_job_of_an_earlier_trainwright_is_read(repository: Path) -> None:
    """Its request named the folders that were to be filled in, and each place the keys that led there."""
    golden = json.loads((repository / "tests/golden/messages/EvaluateRequest-v1.json").read_text())
    flat = {"store": golden["store"]["uri"], "store_options": golden["store"]["options"]}
    flat["pointers"] = golden["store"]["pointers"]
    kept = {key: golden[key] for key in golden.keys() - {"schema_version", "code", "metrics_code", "paths", "store"}}
    dataset = golden["sets"][""]["dataset"]
    places = [
        {"keys": ["project"], "code": REF},
        {"keys": ["metrics_project"], "code": OTHER},
        {"keys": ["sets", "", "path"], "dataset": dataset},
    ]
    job = RemoteJob.from_json({"module": EVALUATE.module, "request": {**flat, **kept}, "places": places})
    paths = {REF["id"]: "/p", OTHER["id"]: "/m", dataset["ref"]["id"]: "/d"}
    request = EvaluateRequest.from_json(job.request_at(paths))
    expected = EvaluateRequest.from_json({**golden, "code": REF, "metrics_code": OTHER, "paths": paths})
    assert request == expected
    assert job.needs == expected.needs
    asked = {"checkpoint": golden["checkpoint"], "train": {}, "dataset": None, "dataset_path": ""}
    job = RemoteJob.from_json({"module": VERIFY.module, "request": {**flat, **asked}, "places": places[:1]})
    assert VerifyRequest.from_json(job.request_at({REF["id"]: "/p"})).project == Path("/p")
