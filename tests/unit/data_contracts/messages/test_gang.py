"""What earlier versions wrote into a store is read, and what is written still has the keys that they read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from data_contracts.errors import UsageError
from data_contracts.messages import Message
from data_contracts.messages.gang import Heartbeat, Joined, Latest, Launch, Meeting, NodeExit, RankReport

STORED: dict[str, type[Message]] = {
    "g0/launch.json": Launch,
    "g0/rollcall.json": Meeting,
    "g0/node-0/joined.json": Joined,
    "g0/node-0/beat-3.json": Heartbeat,
    "g0/node-0/exit.json": NodeExit,
}
# Written by an earlier version, and never read by any.
NEVER_READ = {"store_options", "data_external"}


def golden(repository: Path, name: str) -> list[dict[str, Any]]:
    trainings = repository / "tests/golden/store-v1/store/trainings"
    return [json.loads(path.read_text()) for path in sorted(trainings.glob(f"*/{name}"))]


@pytest.mark.parametrize("name", STORED)
def test_a_record_of_an_earlier_version_is_read_and_its_keys_are_still_written(name: str, repository: Path) -> None:
    kind, records = STORED[name], golden(repository, name)
    assert records
    for record in records:
        again = kind.from_json(record).to_json()
        assert record.keys() - again.keys() <= NEVER_READ
        for key in record.keys() & again.keys() - {"ranks", "nodes"}:
            assert again[key] == record[key], key


def test_the_pointer_of_an_earlier_version_is_read_and_written_as_it_was(repository: Path) -> None:
    values = [record["value"] for record in golden(repository, "latest")]
    assert len(values) == 3
    assert [Latest.from_json(value).to_json() for value in values] == values


def test_fields_that_an_earlier_version_did_not_write_have_their_defaults(repository: Path) -> None:
    [record, *_] = golden(repository, "g0/launch.json")
    old = {key: value for key, value in record.items() if key not in ("mixture", "begin", "min_nodes", "asked", "skip")}
    launch = Launch.from_json(old)
    assert (launch.mixture, launch.begin, launch.skip, launch.withhold) == ({}, None, [], False)
    assert (launch.least_nodes, launch.asked_nodes) == (1, 1)
    assert launch.run_id == record["provenance"]["run_id"]
    [ended, *_] = golden(repository, "g0/node-0/exit.json")
    del ended["ranks"][0]["stack"], ended["ranks"][0]["report"]["steps"]
    [rank] = NodeExit.from_json(ended).ranks
    assert (rank.stack, rank.report.steps, rank.report.step) == ("", 0, 45)
    assert rank.done.checkpoint == rank.report.checkpoints[-1]


def test_a_generation_has_the_settings_of_its_training() -> None:
    launch = Launch(training="trainings/k-0", nodes=4, min_nodes=2, devices=1)
    later = launch.for_generation(3, 5)
    assert (later.generation, later.token, later.resume) == (3, 5, None)
    assert later.model_copy(update={"generation": 0, "token": 0}) == launch


def test_a_number_that_is_not_finite_stays_one() -> None:
    assert math.isnan(json.loads(json.dumps(RankReport(rank=0, metrics={"a": math.nan}).to_json()))["metrics"]["a"])


def test_a_newer_record_inside_a_record_is_refused_too(repository: Path) -> None:
    [value, *_] = [record["value"] for record in golden(repository, "latest")]
    value["checkpoints"][0]["schema_version"] = 9
    with pytest.raises(UsageError, match="This Checkpoint has schema 9, newer than"):
        Latest.from_json(value)


EXIT, LAUNCH = "g0/node-0/exit.json", "g0/launch.json"
# the stored record, what is changed in it
UNFIT: dict[str, tuple[str, dict[str, Any]]] = {
    "failed without an error": (EXIT, {"status": "failed", "error": None}),
    "done with an error": (EXIT, {"status": "done", "error": {"cause": "hung", "message": ""}}),
    "a cause that is a list": (EXIT, {"status": "failed", "error": {"cause": ["hung"], "message": ""}}),
    "details that are a list": (EXIT, {"status": "failed", "error": {"cause": "hung", "message": "", "details": []}}),
    "no ranks": (EXIT, {"ranks": []}),
    "no answer": (EXIT, {"ranks": [{"rank": 0}]}),
    "a time below 0": (LAUNCH, {"poll_s": -1}),
    "a time without end": (LAUNCH, {"heartbeat_s": "inf"}),
    "too many devices": (LAUNCH, {"devices": 10**9}),
    "no node": (LAUNCH, {"nodes": 0}),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_record_that_contradicts_itself_or_cannot_be_does_not_fit(case: str, repository: Path) -> None:
    name, changes = UNFIT[case]
    [record, *_] = golden(repository, name)
    STORED[name].from_json(record)
    with pytest.raises(ValidationError):
        STORED[name].from_json(record | changes)


def test_a_stored_record_is_read_by_its_stored_names_alone() -> None:
    launch = Launch(training="trainings/k-0", nodes=1, devices=1, nodes_in_spec=4).to_json()
    assert (launch["asked"], Launch.from_json(launch).nodes_in_spec) == (4, 4)
    del launch["asked"]
    assert Launch.from_json({**launch, "nodes_in_spec": 4}).nodes_in_spec is None
