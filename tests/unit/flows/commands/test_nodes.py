"""`nodes`, `drain`, `restore`: what people see and decide of nodes."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import CorruptError
from data_contracts.records import FailureEvent
from infra.records.nodes import decide, drained_nodes, nodes_of, record_failure
from infra.store import Store, layout
from tests.support.commands import output_of
from tests.support.damage import overwrite

ODD = "Node_A.example.com/../x"


def failure(node: str, at: str = "2026-01-01T00:00:00+00:00", **more: Any) -> FailureEvent:
    about = {"kind": "failure", "cause": "hung", "training": "trainings/k-0", "generation": 0, "sentence": "It hung."}
    return FailureEvent(**{"node": node, "at": at, **about, **more})


def test_nothing_is_known(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert output_of(capsys, "nodes", store.uri) == "Nothing went wrong on any node, and none is drained.\n"


def test_a_node_is_listed_drained_and_restored(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert [record_failure(store, failure("gpu-1")) for _ in range(2)] == [True, False], "once each"
    record_failure(store, failure("gpu-1", generation=1, kind="straggler"))
    lines = output_of(capsys, "nodes", store.uri).splitlines()
    assert lines[2].split()[:6] == ["gpu-1", "in", "use", "1", "1", "0"]
    assert "gpu-1 from its next generation on\n" in output_of(
        capsys, "drain", "gpu-1", "--reason", "its fan", "--store", store.uri
    )
    assert list(drained_nodes(store)) == ["gpu-1"]
    assert "drained" in output_of(capsys, "nodes", store.uri)
    assert "its fan" in output_of(capsys, "nodes", "--store", store.uri), "as drain and restore name it"
    output_of(capsys, "restore", "gpu-1", "--reason", "a new fan", "--store", store.uri)
    assert drained_nodes(store) == {}
    (known,) = json.loads(output_of(capsys, "nodes", store.uri, "--json"))["stores"][0]["nodes"]
    assert known["since_restored"] == {"failure": 0, "straggler": 0, "corrupt_replica": 0}
    assert known["ever"] == {"failure": 1, "straggler": 1, "corrupt_replica": 0}
    assert (known["standing"]["by"], known["standing"]["reason"]) == ("ada", "a new fan")
    not_drained = output_of(capsys, "restore", "gpu-1", "--reason", "x", "--store", store.uri, code=2)
    assert "The node gpu-1 is not drained." in not_drained


def test_a_name_that_is_no_path_is_kept_as_it_is(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    printed = output_of(capsys, "drain", ODD, "--reason", "x", "--store", store.uri)
    assert "nothing is recorded of it yet, so check the name" in printed
    assert list(drained_nodes(store)) == [ODD]
    for wrong in ("", "a\x1b[31m", "n" * 254):
        assert "cannot be the name of a node" in output_of(
            capsys, "drain", wrong, "--reason", "x", "--store", store.uri, code=2
        )
    assert not record_failure(store, failure("a\nb"))


def test_two_decisions_at_once_are_both_kept(store: Store) -> None:
    both = threading.Barrier(4)

    def drain(number: int) -> None:
        both.wait()
        decide(store, "gpu-1", drained=True, reason=f"reason {number}")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(drain, range(4)))
    assert len(store.list(layout.node_standings("gpu-1"))) == 4


def test_what_others_put_beside_the_records_is_not_read(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    decide(store, "gpu-1", drained=True, reason="x")
    folder = Path(store.uri) / layout.NODES
    for odd in ("gpu-1/standing/\u00b2.json", "gpu-1/standing/notes.txt", "Not A Node", "gpu-2", "gpu-1/mishaps/notes"):
        (folder / odd).mkdir(parents=True)
    assert list(drained_nodes(store)) == [node.name for node in nodes_of(store)] == ["gpu-1"]
    output_of(capsys, "restore", "gpu-1", "--reason", "x", "--store", store.uri)
    assert drained_nodes(store) == {}


def test_several_stores_and_damage(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decide(store, "gpu-1", drained=True, reason="x")
    overwrite(Path(store.uri) / layout.node_standing("gpu-1", 0), "{}")
    with pytest.raises(CorruptError):
        nodes_of(store)
    assert "nodes/gpu-1/standing/0.json" in output_of(capsys, "nodes", store.uri, code=6)


def test_draining_a_node_reads_no_record_of_what_went_wrong(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for generation in range(3):
        record_failure(store, failure("gpu-1", generation=generation))
    monkeypatch.setattr(FailureEvent, "from_json", None)
    assert "check the name" not in output_of(capsys, "drain", "gpu-1", "--reason", "fan", "--store", store.uri)
    assert "check the name" in output_of(capsys, "drain", "gpu-2", "--reason", "fan", "--store", store.uri)
