"""Of sensitive data, no message has a column's name that the spec does not have."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from data_contracts.errors import UsageError, UserCodeError
from data_contracts.quoting import LOG
from infra.sources.types import misfit
from tests.support.splits import normalised
from training.formats import schema, tfrecord
from training.formats.schema import Facts, Mismatch
from training.shard import first_pass
from training.shard.key_digests import UnusableKey, key_digests

SECRET = "jane@x.example"
ONE = pa.table({SECRET: [1]})


def _pick() -> None:
    schema.pick(ONE.schema, ["nope"])


def _two_of_one_name() -> None:
    normalised(pa.Table.from_arrays([pa.array([1]), pa.array([2])], [SECRET, SECRET]))


def _two_of_one_name_from_a_transform() -> None:
    first_pass.checked_rows(pa.Table.from_arrays([pa.array([1]), pa.array([2])], [SECRET, SECRET]))


def _a_type_that_no_shard_holds() -> None:
    schema.type_text(pa.field(SECRET, pa.struct([("a", pa.int64())])))


def _a_key_of_an_object_that_no_shard_holds() -> None:
    schema.columns_of(pa.table({"a": [[{SECRET: 1}]]}).schema)


def _a_key_of_an_object_that_no_tfrecord_holds() -> None:
    tfrecord.refuse(pa.table({"a": [{SECRET: 1}]}))


def _a_key_of_an_object_that_no_split_can_use() -> None:
    key_digests([pa.chunked_array([[{SECRET: 1}]])], 0)


def _a_value_that_does_not_fit_an_object() -> None:
    raise misfit("a.jsonl", 0, "a", pa.struct([(SECRET, pa.int64())]))


def _what_no_tfrecord_holds() -> None:
    tfrecord.refuse(pa.table({SECRET: [[1, None]]}))


def _other_columns() -> None:
    _look(ONE, pa.table({"b": [1]}))


def _other_types() -> None:
    _look(ONE, pa.table({SECRET: ["a"]}))


def _other_shapes() -> None:
    _look(pa.table({SECRET: [[1, 2]]}), pa.table({SECRET: [["a"]]}))


def _look(*tables: pa.Table) -> None:
    facts = Facts()
    for table in tables:
        facts.look(["train"], np.zeros(table.num_rows, np.int16), table)


CASES = [
    _pick, _two_of_one_name, _two_of_one_name_from_a_transform, _a_type_that_no_shard_holds, _what_no_tfrecord_holds,
    _other_columns, _other_types, _other_shapes, _a_key_of_an_object_that_no_shard_holds,
    _a_key_of_an_object_that_no_tfrecord_holds, _a_key_of_an_object_that_no_split_can_use,
    _a_value_that_does_not_fit_an_object,
]  # fmt: skip


@pytest.mark.parametrize("fail", CASES)
def test_no_message_has_a_name_that_only_the_data_has(
    fail: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOG, "/log")
    with pytest.raises((UsageError, UserCodeError, Mismatch, UnusableKey)) as caught:
        fail()
    assert SECRET not in "".join(traceback.format_exception_only(caught.value))
