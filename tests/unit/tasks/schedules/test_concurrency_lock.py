"""The concurrency lock of runs that nobody starts by hand: who waits, who is skipped, and who is asked to end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data_contracts.canonical import digest
from infra.stopping import STOP_FILE, HandedOver
from infra.store import Store, layout
from infra.store.lease import LeaseKeeper, held_lease
from tasks.schedules import ConcurrencyLock, Skipped

RUN = "20261125-010203-0a1b2c"
# A holder lives however slowly it renews.
QUICK: dict[str, Any] = {"patience_s": 120.0, "look_every_s": 0.02, "renew_s": 0.05}


def lock(store: Store, overlap: Any, key: str, **more: Any) -> ConcurrencyLock:
    return ConcurrencyLock(store, "tiny", overlap, key, **{**QUICK, **more})


def never() -> None:
    raise AssertionError("nobody asked")


@contextlib.contextmanager
def earlier(store: Store, overlap: Any = "cancel_old", key: str = "first", **more: Any) -> Iterator[threading.Event]:
    """An earlier run that holds the lock in a thread of its own; it ends when it is asked to, or at the end."""
    end, held, was_asked = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        with lock(store, overlap, key, **more).hold(end.set) as asked:
            held.set()
            end.wait()
            if asked.is_set():
                was_asked.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert held.wait(480)
    try:
        yield was_asked
    finally:
        end.set()
        thread.join()


@contextlib.contextmanager
def run_by_hand(store: Store, pipeline: str = "tiny", run_id: str = RUN) -> Iterator[LeaseKeeper]:
    store.create_json(layout.resolved(run_id), {"spec": {"name": pipeline}})
    keeper = LeaseKeeper(store, layout.lease(layout.run(run_id)), run_id, renew_s=0.05)
    keeper.start()
    assert keeper.token(60) == 0
    try:
        yield keeper
    finally:
        keeper.stop()


def test_skip_ends_without_beginning(store: Store) -> None:
    said = r"of tiny is unfinished \(schedule.overlap: skip\)"
    with earlier(store), pytest.raises(Skipped, match=said), lock(store, "skip", "second").hold(never):
        raise AssertionError("it began")
    with lock(store, "skip", "third").hold(never):
        pass


# Who holds it; the key of whoever comes, and whether it was begun; its overlaps.
WAITS = [
    (earlier, "first", {}, ("skip", "queue", "cancel_old")),
    (earlier, "second", {"waits": True}, ("skip", "queue", "cancel_old")),
    (run_by_hand, "k", {}, ("queue", "cancel_old")),
]


@pytest.mark.parametrize(
    ("holder", "key", "more", "overlap"), [(*case, overlap) for *case, overlaps in WAITS for overlap in overlaps]
)
def test_who_comes_waits_and_asks_nobody_to_end(
    store: Store, holder: Any, key: str, more: dict[str, Any], overlap: str
) -> None:
    """An execution of a run that holds it or was begun, and any that comes while a person's run is at work."""
    began = threading.Event()

    def second() -> None:
        with lock(store, overlap, key, **more).hold(never):
            began.set()

    thread = threading.Thread(target=second)
    with holder(store):
        thread.start()
        assert not began.wait(0.5)
        assert store.list("schedules/tiny") == ["turn"]
    thread.join()
    assert began.is_set()


def test_cancel_old_asks_the_earlier_run_and_begins_when_it_has_ended(store: Store) -> None:
    with earlier(store) as asked, lock(store, "cancel_old", "second").hold(never):
        assert asked.is_set()
        assert len(store.list("schedules/tiny/wanted")) == 1


def test_a_mark_that_was_planted_before_a_turn_asks_nobody_to_end(store: Store) -> None:
    for name in ("0", "0-0123456789abcdef"):
        store.create_json(f"schedules/tiny/wanted/{name}.json", {"schema_version": 1, "at": "2026-11-25"})
    with earlier(store) as asked:
        time.sleep(5 * QUICK["look_every_s"])
        assert not asked.is_set()


def test_a_run_never_cancels_one_that_was_meant_to_start_later(store: Store) -> None:
    late = lock(store, "cancel_old", "late", scheduled_s=100)
    with (
        earlier(store, scheduled_s=200) as asked,
        pytest.raises(Skipped, match="A newer run of tiny is at work"),
        late.hold(never),
    ):
        raise AssertionError("it began")
    assert not asked.is_set()


@pytest.mark.parametrize("overlap", ["skip", "cancel_old"])
def test_a_holder_that_died_elsewhere_is_taken_over_and_not_waited_for(store: Store, overlap: str) -> None:
    value = {"holder": "aaaa/0/x", "token": 0, "beat": 3, "released": False}
    store.pointer(layout.concurrency_lock("tiny")).create(value)
    with lock(store, overlap, "k", patience_s=0.6).hold(never):
        held = held_lease(store, layout.concurrency_lock("tiny"))
        assert held.value["token"] == 1
        assert held.value["holder"].startswith(digest("k")[:16])


@pytest.mark.parametrize("waits_for", [earlier, run_by_hand])
def test_a_run_that_waits_ends_when_its_worker_is_stopped_as_planned(
    store: Store, waits_for: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stop").touch()
    with waits_for(store):
        monkeypatch.setenv(STOP_FILE, str(tmp_path / "stop"))
        with pytest.raises(HandedOver), lock(store, "queue", "second").hold(never):
            never()
    assert held_lease(store, layout.concurrency_lock("tiny")) is None


def test_skip_counts_a_run_that_a_person_started(store: Store) -> None:
    said = f"The run {RUN} of tiny is unfinished"
    with run_by_hand(store), pytest.raises(Skipped, match=said), lock(store, "skip", "k").hold(never):
        raise AssertionError("it began")


def test_runs_that_do_not_count(store: Store) -> None:
    """Of another pipeline, ended, dead elsewhere, damaged, or this run itself."""
    with run_by_hand(store, "other"):
        store.create_json(layout.trigger("k"), {"schema_version": 1, "run_id": RUN.replace("0a", "0b")})
        with run_by_hand(store, run_id=RUN.replace("0a", "0b")):
            dead = RUN.replace("0a", "0c")
            store.create_json(layout.resolved(dead), {"spec": {"name": "tiny"}})
            lease = {"holder": "x", "token": 0, "beat": 0, "released": False}
            store.pointer(layout.lease(layout.run(dead))).create(lease)
            damaged = RUN.replace("0a", "0d")
            store.create_json(layout.resolved(damaged), {"spec": []})
            store.pointer(layout.lease(layout.run(damaged))).create(lease)
            started = time.monotonic()
            with lock(store, "skip", "k", waits=True, patience_s=0.6).hold(never):
                assert time.monotonic() - started < 300
