"""Records carry a digest over their own bytes, name their own place, and are parsed strictly."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import CorruptError, UsageError
from infra.store import Lease, Store, layout, open_store, records
from infra.store.records import parsed, read_record, read_strictly, write_record
from tests.support.damage import flipped, overwrite
from tests.support.files import write_files

VALUE = {"schema_version": 2, "b": ["é", {"c": 1.5}], "a": None}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth - 1):
        value = [value]
    return value


def test_what_is_written_is_read() -> None:
    assert read_record("runs/r/report.json", write_record("runs/r/report.json", VALUE)) == (VALUE, 2)


@pytest.mark.parametrize("bit", range(0, 8 * len(write_record("p", VALUE)), 7))
def test_a_flipped_bit_is_found(bit: int) -> None:
    with pytest.raises(CorruptError) as raised:
        read_record("p", flipped(write_record("p", VALUE), bit))
    assert raised.value.details == {"file": "p"}
    assert "\n" not in raised.value.message


WRONG = {
    "nothing": b"",
    "not JSON": b"{",
    "brackets": b"[" * 100_000,
    "braces": b'{"a":' * 100_000,
    "not UTF-8": b'{"a":"\xff"}',
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "a mark before it": b'\xef\xbb\xbf{"a":1}',
    "half a character": b'{"a":"\\ud800"}',
    "a key twice": b'{"a":1,"a":2}',
    "NaN": b'{"a":NaN}',
    "infinite": b'{"a":1e999}',
    "a million digits": b'{"a":1' + b"0" * 10**6 + b"}",
    "a thousand digits": b'{"a":1' + b"0" * 1000 + b"}",
    "too deep": json.dumps({"a": nested(101)}).encode(),
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG)
def test_what_is_not_a_record_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptError, match="^p is ") as raised:
        read_record("p", data)
    assert "\n" not in raised.value.message


def test_what_is_too_large_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_BYTES", 10)
    with pytest.raises(CorruptError, match=r"^p is larger than any record\."):
        read_strictly("p", b'{"a":12345}')


def test_what_cannot_be_a_record_is_not_written() -> None:
    for value in ({"a": nested(100)}, {"path": "x"}, {"digest": "x"}, {"a": float("nan")}):
        with pytest.raises(ValueError, match="."):
            write_record("p", value)
    assert read_record("p", write_record("p", {"schema": 2, "a": nested(99)}))[1] == 2


def test_the_content_of_another_record_is_refused(store: Store) -> None:
    for name in ("a", "b"):
        store.create_json(f"runs/{name}/report.json", {"schema_version": 1, "run": name})
    assert store.read_json("runs/a/report.json") == {"schema_version": 1, "run": "a"}
    with pytest.raises(
        CorruptError, match=r"^runs/a/report\.json holds the record that was written as runs/b/report\.json\."
    ):
        read_record("runs/a/report.json", store.read("runs/b/report.json"))


def test_what_does_not_fit_is_reported_in_one_line() -> None:
    from data_contracts.handoffs import Checkpoint

    for parse in (lambda told: told["x"], lambda told: told["a"]["b"], Checkpoint.from_json):
        with pytest.raises(CorruptError, match="^p is not the record that belongs there ") as raised:
            parsed("p", parse, {"a": 1})
        assert "\n" not in raised.value.message


def test_a_pointer_that_was_changed_is_neither_read_nor_moved(folder_store: Store) -> None:
    pointer = folder_store.pointer("p")
    held = pointer.create("a")
    file = Path(folder_store.uri, "p")
    overwrite(file, file.read_bytes().replace(b'"a"', b'"b"'))
    for work in (pointer.read, lambda: pointer.swap(held, "c")):
        with pytest.raises(CorruptError, match=r"^p was changed after it was written\."):
            work()


@pytest.mark.parametrize("value", [{}, {"token": 1}, [], {"beat": 0, "holder": 1, "released": False, "token": 0}])
def test_what_is_not_a_lease_is_refused(folder_store: Store, value: Any) -> None:
    folder_store.pointer("l").create(value)
    with pytest.raises(CorruptError, match="^l is not the record that belongs there"):
        Lease.take(folder_store, "l", "me")


OLD = b'{"schema_version":1,"name":"x"}'


def test_earlier_records_are_read_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = {layout.STORE: b'{"made":"t","pointers":"store","probe":{},"schema":1}'}
    store = open_store(str(write_files(tmp_path / "store", earlier)))
    # A command that another test carried out in this process has set up the log.
    log = logging.getLogger("trainwright")
    for name, value in {"handlers": [], "propagate": True, "disabled": False}.items():
        monkeypatch.setattr(log, name, value)
    caplog.set_level(logging.WARNING, logger="trainwright")
    for name in ("a", "b"):
        store.create(f"pipelines/{name}", OLD)
        assert store.read_json(f"pipelines/{name}") == {"schema_version": 1, "name": "x"}
    store.create("p", b'{"schema":1,"value":"a","version":4}')
    pointer = store.pointer("p")
    held = pointer.read()
    assert (held.value, held.version, held.schema) == ("a", 4, 1)
    moved = pointer.swap(held, "b")
    assert (pointer.read(), moved.version, moved.schema) == (moved, 5, 2)
    assert [one.getMessage() for one in caplog.records if one.name == log.name] == [
        f"pipelines/a in the store {store.uri} was written by an earlier Trainwright: it carries no digest, so damage "
        "to it may not be noticed. Records that are written from now on carry a digest."
    ]


def test_a_new_store_refuses_records_of_an_earlier_version(folder_store: Store) -> None:
    folder_store.create("pipelines/a", OLD)
    sentence = r"^pipelines/a has schema 1, although store\.json shows that it was written by a later version\."
    with pytest.raises(CorruptError, match=sentence):
        folder_store.read_json("pipelines/a")


def test_a_record_of_a_newer_schema_is_refused() -> None:
    data = write_record("p", {"schema": 3})
    with pytest.raises(UsageError, match="^p has schema 3, newer than the 2 that this Trainwright reads"):
        read_record("p", data)
