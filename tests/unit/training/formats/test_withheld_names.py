"""Of sensitive data, no message has a column's name that the spec does not have."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from data_contracts.errors import UsageError, UserCodeError
from data_contracts.pipeline_spec import SplitSpec
from data_contracts.quoting import LOG
from infra.sources.types import misfit
from tests.support.splits import normalised
from training.formats import schema, tfrecord
from training.formats.schema import Facts, Mismatch
from training.shard import first_pass
from training.shard.key_digests import UnusableKey, key_digests
from training.shard.splitter import Splitter

SECRET = "jane@x.example"
ONE = pa.table({SECRET: [1]})


def _look(*tables: pa.Table) -> None:
    facts = Facts()
    for table in tables:
        facts.look(["train"], np.zeros(table.num_rows, np.int16), table)


def _misfit() -> None:
    raise misfit("a.jsonl", 0, "a", pa.struct([(SECRET, pa.int64())]))


TWINS = pa.Table.from_arrays([pa.array([1]), pa.array([2])], [SECRET, SECRET])
OBJECTS = pa.table({"a": [[{SECRET: 1}]]})
CASES: dict[str, Callable[[], object]] = {
    "pick": lambda: schema.pick(ONE.schema, ["nope"]),
    "a missing column of a split": lambda: Splitter(SplitSpec.model_validate({"key": "name"}), ONE.schema),
    "two of one name": lambda: normalised(TWINS),
    "two of one name from a transform": lambda: first_pass.checked_rows(TWINS),
    "a type that no shard holds": lambda: schema.type_text(pa.field(SECRET, pa.struct([("a", pa.int64())]))),
    "a key of an object that no shard holds": lambda: schema.columns_of(OBJECTS.schema),
    "a key of an object that no TFRecord holds": lambda: tfrecord.refuse(pa.table({"a": [{SECRET: 1}]})),
    "a key of an object that no split can use": lambda: key_digests([OBJECTS["a"]], 0),
    "a value that does not fit an object": _misfit,
    "what no TFRecord holds": lambda: tfrecord.refuse(pa.table({SECRET: [[1, None]]})),
    "other columns": lambda: _look(ONE, pa.table({"b": [1]})),
    "other types": lambda: _look(ONE, pa.table({SECRET: ["a"]})),
    "other shapes": lambda: _look(pa.table({SECRET: [[1, 2]]}), pa.table({SECRET: [["a"]]})),
}


@pytest.mark.parametrize("fail", CASES.values(), ids=CASES)
def test_no_message_has_a_name_that_only_the_data_has(
    fail: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOG, "/log")
    with pytest.raises((UsageError, UserCodeError, Mismatch, UnusableKey)) as caught:
        fail()
    assert SECRET not in "".join(traceback.format_exception_only(caught.value))
