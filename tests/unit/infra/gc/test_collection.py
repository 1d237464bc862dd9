"""Single cases of a collection: a store on S3, leases, what cannot be read, and who takes up what it deletes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_contracts.approvals import Answer, Question
from data_contracts.errors import CorruptError, Interrupted
from data_contracts.handoffs import Ref
from data_contracts.messages.gang import Launch
from data_contracts.pipeline_spec import RetrySpec
from infra.approvals import ask, give
from infra.code_bundle import pack
from infra.gang.conductor import TrainingRequest, conduct
from infra.garbage import Limits, collect
from infra.records.handoffs import find_dataset, find_dataset_by_id, put_handoff
from infra.store import Lease, Store, layout, open_store
from infra.store.lease import LeaseKeeper
from tests.support.counted import away
from tests.support.damage import overwrite
from tests.support.files import write_files
from tests.support.histories import OLD_S, YOUNG_S, History
from tests.support.s3 import S3Server

AT_ONCE = Limits(keep_s=0, grace_s=0)


@pytest.fixture
def history(store: Store) -> History:
    return History(store)


def test_a_bucket_is_cleaned_alike_and_uploads_without_an_end_are_aborted(s3_server: S3Server) -> None:
    history = History(open_store(f"s3://{s3_server.bucket()}/a/prefix", s3_server.options))
    store = history.store
    contract, code = history.sealed("contracts", OLD_S), history.sealed("code", OLD_S)
    dataset = history.sealed("datasets", OLD_S, contract)
    longer = history.sealed("datasets", OLD_S, elsewhere=dataset)
    training = history.training(OLD_S, longer, code)
    other = history.training(OLD_S, history.sealed("datasets", OLD_S), history.sealed("code", OLD_S))
    judged = history.sealed("evaluations", OLD_S)
    history.promote(OLD_S, history.version(OLD_S, training, judged))
    begun = store._backend._call("create_multipart_upload", "datasets/x-0/part")
    planned = collect(store, by="a test", limits=AT_ONCE, dry_run=True)
    assert [left.upload_id for left in planned.leftovers] == [begun["UploadId"]]
    done = collect(store, by="a test", limits=AT_ONCE)
    assert done.bytes > 0
    assert other in {one.item.uri for one in done.deleted}
    stay = history.stay(0, 0)
    assert {contract, dataset, longer, code, training, judged} < stay
    history.check(stay)
    assert history.there() == {uri for uri in stay if store.stored(uri)}
    assert store.leftovers() == []


@pytest.mark.parametrize("runs", [3, 30])
def test_a_census_reads_each_record_once_and_those_of_several_runs_at_once(runs: int, history: History) -> None:
    """Of an execution that has ended, the record of its end alone: it holds all of its parts."""
    code = history.sealed("code", OLD_S)
    for _ in range(runs):
        training = history.training(OLD_S, history.sealed("datasets", OLD_S), code)
        run_id = history.run(OLD_S, code, {"train": training}).removeprefix("runs/")
        for what in ("began", "stage-0", "gang-0", "ended"):
            history.store.create_json(layout.usage(run_id, "ended", what), {"where": training})
        history.store.create_json(layout.usage(run_id, "killed", "began"), {"where": training})
    store, backend = away(history.store)
    found = collect(store, by="a test", limits=AT_ONCE, dry_run=True)
    assert found.to_json() == collect(history.store, by="a test", limits=AT_ONCE, dry_run=True).to_json()
    # The clock, a listing of all files, one of aliases, and leftovers; the one bundle of code.
    assert backend.alone == 5
    # A dataset; a training's pointer, result, two launches and two checkpoints; a trigger; a run's inputs, stage,
    # report and two executions.
    assert backend.together == runs * (1 + 6 + 1 + 5)


def test_a_run_that_has_lost_its_report_to_a_killed_collection_is_not_unfinished(history: History) -> None:
    code = history.sealed("code", OLD_S)
    run = history.run(OLD_S, code, {})
    history.store.create_json(layout.tombstone(run), {})
    history.store.forget(f"{run}/report.json")
    history.ageing()
    collect(history.store, by="a test")
    assert history.there() == set()


# How it ended; what a person was asked by when, and answered; whether it stays.
ENDS = [
    *((exit_code, None, None, False) for exit_code in (0, 4, 8)),
    *((exit_code, None, None, True) for exit_code in (5, 7, 130, None)),
    (9, "2199-01-01", None, True),
    (9, "2199-01-01", "approved", True),
    (9, "2199-01-01", "refused", False),
    (9, "2026-01-02", None, False),
]


def asked(store: Store, run: str, deadline: str, decision: Any) -> None:
    """Put a question to a person, and give its answer."""
    ref = Ref(uri="trainings/k-0/checkpoints/1-g0", id="1" * 64, seal="2" * 64)
    question = Question(
        run_id=run.removeprefix("runs/"), n=0, pipeline="p", model="m", alias="champion", candidate=ref, evaluation=ref,
        champion=None, champion_version=None, asked_at="2026-01-01T00:00:00+00:00",
        deadline=f"{deadline}T00:00:00+00:00",
    )  # fmt: skip
    ask(store, question)
    if decision is not None:
        at = "2026-01-01T01:00:00+00:00"
        give(
            store, question, Answer(question=question.digest, decision=decision, by="ann", via="cli", reason="", at=at)
        )


@pytest.mark.parametrize(("exit_code", "deadline", "decision", "stays"), ENDS)
def test_a_run_that_can_be_continued_or_waits_for_a_person_stays_whatever_its_age(
    exit_code: int | None, deadline: str | None, decision: str | None, stays: bool, history: History
) -> None:
    code = history.sealed("code", OLD_S)
    run = history.run(OLD_S, code, {}, exit_code=exit_code)
    if deadline is not None:
        asked(history.store, run, deadline, decision)
    history.ageing()
    collect(history.store, by="a test")
    assert history.there() == ({run, code} if stays else set())
    assert bool(history.store.list("triggers")) is stays


def training_of(history: History, **more: Any) -> str:
    uri = history.training(OLD_S, history.sealed("datasets", OLD_S), history.sealed("code", OLD_S), **more)
    history.ageing()
    return uri


@pytest.mark.parametrize("alive", [True, False])
def test_a_training_that_somebody_conducts_stays_with_what_it_names(
    alive: bool, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its conductor is dead: then its lease is taken over."""
    training, token = training_of(history), LeaseKeeper.token
    if not alive:  # a busy machine may need longer to see that it stands still
        monkeypatch.setattr(LeaseKeeper, "token", lambda keeper, timeout_s: token(keeper, 120))
    keeper = LeaseKeeper(history.store, layout.lease(training), "a conductor", renew_s=0.02)
    if alive:
        keeper.start()
        assert keeper.token(60) is not None
    else:
        Lease.take(history.store, layout.lease(training), "a conductor that died")
    try:
        done = collect(history.store, by="a test", patience_s=0.5)
        keeper.check()
    finally:
        keeper.stop()
    assert history.there() == (set(history.parts) if alive else set())
    assert (training in done.spared) is alive


def test_whoever_waits_for_a_training_that_is_deleted_is_told(history: History) -> None:
    training = training_of(history, done=False)
    collect(history.store, by="a test")
    request = TrainingRequest(
        launch=Launch(training=training, nodes=1, devices=1),
        holder="a run",
        retry=RetrySpec(),
        keep=1,
        select=None,
        rollcall_timeout_s=1,
    )
    with pytest.raises(Interrupted, match=f"{training} was deleted while it was waited for. Resume"):
        conduct(history.store, request)


def test_only_what_no_generation_can_commit_any_more_goes(history: History) -> None:
    """An unfinished training's newest generation may still commit what it has written."""
    training = training_of(history, done=False, dead=1)
    writer = history.store.writer(layout.checkpoint(training, 200, 1))
    writer.put("state.json", b"{}")
    writer.seal("checkpoint", {}, {})
    history.version(OLD_S, training, history.sealed("evaluations", OLD_S))
    history.ageing()
    for path in Path(history.store.uri, training).rglob("*"):
        os.utime(path, (time.time() - OLD_S,) * 2)
    done = collect(history.store, by="a test")
    logs = {one.item.uri for one in done.deleted if one.item.kind == "log"}
    assert {one.item.uri for one in done.deleted} - logs == {layout.checkpoint(training, 100, 0)}
    assert logs == {layout.node(training, 0, 0)}
    assert [c.rpartition("/")[2] for c in history.store.list(layout.checkpoints(training))] == [
        "10-g1",
        "200-g1",
        "5-g1",
    ]


# what is spoilt, whether it stays, what is said
SPOILT = [("datasets", "manifest.json"), ("datasets", "handoff.json"), ("runs", "resolved.json")]


@pytest.mark.parametrize(("area", "file"), SPOILT)
def test_what_stays_and_cannot_be_read_stops_everything(area: str, file: str, history: History) -> None:
    code = history.sealed("code", OLD_S)
    parent = history.sealed("datasets", OLD_S)
    dataset = history.sealed("datasets", OLD_S, elsewhere=parent)
    run = history.run(YOUNG_S, code, {"shard": dataset})
    history.sealed("datasets", OLD_S)
    history.ageing()
    path = Path(history.store.uri, dataset if area == "datasets" else run, file)
    overwrite(path, path.read_bytes()[:-9])
    os.utime(path, (time.time() - (OLD_S if area == "datasets" else YOUNG_S),) * 2)
    with pytest.raises(CorruptError, match="Nothing was deleted, because it is unknown what this file refers to"):
        collect(history.store, by="a test")
    assert history.there() == set(history.parts)


def test_a_directory_that_is_named_and_has_lost_its_manifest_stops_everything(history: History) -> None:
    """Else what it was made from, which only its manifest names, would be deleted."""
    dataset = history.sealed("datasets", OLD_S, history.sealed("contracts", OLD_S))
    history.training(YOUNG_S, dataset, history.sealed("code", OLD_S))
    history.ageing()
    Path(history.store.uri, dataset, "manifest.json").unlink()
    with pytest.raises(CorruptError, match=f"^{dataset}/manifest.json is missing. Nothing was deleted"):
        collect(history.store, by="a test")


# what is changed in the manifest, whether what it was can still be told
FLIPS = [(b'"provenance":{', b'"provenance":{"a":1,', True), (b'"settings":{', b'"settings":{"a":1,', False)]


@pytest.mark.parametrize(("old", "new", "known"), FLIPS)
def test_what_is_spoilt_and_reached_by_nothing_goes_if_that_can_be_told(
    old: bytes, new: bytes, known: bool, history: History
) -> None:
    dataset = history.sealed("datasets", OLD_S)
    path = Path(history.store.uri, dataset, "manifest.json")
    overwrite(path, path.read_bytes().replace(old, new))
    history.ageing()
    if known:
        collect(history.store, by="a test")
    else:
        with pytest.raises(CorruptError, match="Nothing was deleted"):
            collect(history.store, by="a test")
    assert history.there() == (set() if known else {dataset})


USES: dict[str, Callable[[Store, Ref], object]] = {
    "newest": lambda store, ref: store.newest("datasets", "k"),
    "find_dataset": lambda store, ref: find_dataset(store, ref.uri),
    "find_dataset_by_id": lambda store, ref: find_dataset_by_id(store, ref.id),
}


@pytest.mark.parametrize("way", USES)
def test_what_a_line_takes_up_is_claimed(way: str, history: History) -> None:
    writer = history.store.writer("datasets/k-0")
    put_handoff(writer, {"key": "k", "format": "parquet", "splits": {}, "columns": {}, "schema_version": 1})
    ref = writer.seal("dataset", {}, {})
    began = time.time()
    assert USES[way](history.store, ref) is not None
    assert history.store.last_claim_s(ref.uri) > began
    assert collect(history.store, by="a test", limits=Limits(0, 60)).deleted == []
    # Deleted behind its back: what is about to go is not taken up.
    history.store.create_json(layout.tombstone(ref.uri), {})
    assert USES[way](history.store, ref) is None


def test_a_bundle_that_is_deleted_is_packed_under_another_name(history: History, tmp_path: Path) -> None:
    project = write_files(tmp_path / "project", {"pyproject.toml": "", "net.py": "x = 1"})
    first = pack(project, history.store)
    assert collect(history.store, by="a test", limits=Limits(0, 60)).deleted == [], "it is claimed when it is packed"
    history.store.create_json(layout.tombstone(first.ref.uri), {})
    second = pack(project, history.store)
    assert second.ref.uri == f"{first.ref.uri}-1"
    assert pack(project, history.store) == second
