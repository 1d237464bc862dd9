"""Key digests: the same for one key in any width and unit, different for different keys, and never changing."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_contracts.pipeline_spec import SplitSpec
from tests.support.representations import ALL, columns, in_chunks
from tests.support.splits import normalised
from training.contamination.exact import row_digests
from training.shard.key_digests import UnusableKey, key_digests
from training.shard.splitter import Splitter


def _digests(*columns: pa.Array, seed: int = 0) -> list[bytes]:
    return [row.tobytes() for row in key_digests([pa.chunked_array([column]) for column in columns], seed)]


def test_a_digest_never_changes():
    # Golden: were one of these to change, rows would move from train to test between two versions of ours.
    found = [
        one.hex()[:16] for one in _digests(pa.array(["a", "b"])) + _digests(pa.array([1, None]), pa.array([0.5, 1]))
    ]
    assert found == GOLDEN


GOLDEN = ["9ee3d8b77f234588", "cd951bd52467f890", "1c7398872eccd293", "398a43f75ec5c2c4"]


@pytest.mark.parametrize(
    ("one", "same"),
    [
        (pa.array([5, -1], pa.int8()), pa.array([5, -1], pa.int64())),
        (pa.array([5], pa.uint16()), pa.array([5], pa.int32())),
        (pa.array([0.5], pa.float32()), pa.array([0.5], pa.float64())),
        (pa.array([0.0]), pa.array([-0.0])),
        (pa.array(["é"]), pa.array(["é"], pa.large_string())),
        (pa.array([b"ab"]), pa.array([b"ab"], pa.binary(2))),
        (pa.array([7], pa.timestamp("s", "UTC")), pa.array([7 * 10**9], pa.timestamp("ns", "Europe/Paris"))),
        (pa.array([Decimal("1.50")]), pa.array([Decimal("1.5")])),
        (pa.array([Decimal("1.50")], pa.decimal32(3, 2)), pa.array([Decimal("1.5")])),
        (pa.array([b"0123456789abcdef"], pa.uuid()), pa.array([b"0123456789abcdef"])),
    ],
)
def test_a_key_is_the_same_in_any_width_and_unit(one, same):
    assert _digests(one) == _digests(same)


def test_different_keys_differ():
    columns = [
        (pa.array([1]),), (pa.array(["1"]),), (pa.array([b"1"]),), (pa.array([1.0]),), (pa.array([None], pa.int64()),),
        (pa.array([1], pa.date32()),), (pa.array([1], pa.timestamp("s")),), (pa.array([1]), pa.array([2])),
        (pa.array(["12"]), pa.array([""])), (pa.array(["1"]), pa.array(["2"])), (pa.nulls(1), pa.nulls(1)),
        (pa.array([float("nan")]),),
    ]  # fmt: skip
    digests = [_digests(*one)[0] for one in columns]
    assert len(set(digests)) == len(columns)
    assert _digests(pa.array([1]), seed=1) != _digests(pa.array([1]), seed=2)


@pytest.mark.parametrize("step", [1, 3, 0], ids=["distinct", "in threes", "one"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.float64()], ids=str)
def test_keys_that_repeat_and_keys_that_do_not_have_the_same_digests_in_any_batch(step, kind):
    values = pa.array([at // step if step else 7 for at in range(600)]).cast(kind)
    for others in ([], [pa.array([at % 2 for at in range(600)])]):
        found = _digests(values, *others)
        for at in range(0, 600, 60):
            assert found[at : at + 60] == _digests(*(one.slice(at, 60) for one in (values, *others)))


def test_a_nested_column_is_no_key():
    with pytest.raises(UnusableKey, match="list<item: int64>, which cannot be a key") as caught:
        key_digests([pa.chunked_array([[1]]), pa.chunked_array([pa.array([[1]])])], 0)
    assert caught.value.column == 1


@given(st.lists(st.tuples(st.integers(0, 3) | st.none(), st.sampled_from(["a", "b", "ab", ""])), min_size=1))
def test_rows_have_one_digest_exactly_when_they_have_one_key(keys):
    digests = _digests(*(pa.array(list(column)) for column in zip(*keys, strict=True)), seed=3)
    assert len(set(zip(keys, digests, strict=True))) == len(set(keys)) == len(set(digests))


@pytest.mark.parametrize("form", ALL)
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(values=columns())
def test_the_form_of_a_column_changes_no_key_no_split_and_no_stored_row(form, values):
    """Whatever a reader or a transform hands over: dictionaries with nulls, views, slices, extension types."""
    held, plain = pa.table({"x": in_chunks(ALL[form], values)}), pa.table({"x": values})
    number = pa.chunked_array([pa.array(range(len(values)), pa.int64())])
    assert _digests(ALL[form](values)) == _digests(values)
    for more in ([], [number]):
        found = [key_digests([table["x"], *more], 3).tolist() for table in (held, plain)]
        assert found[0] == found[1]
    for split in ({"key": "x", "fractions": {"train": 0.5, "test": 0.5}}, {"column": "x"}):
        found = [_assigned(SplitSpec(**split), table) for table in (held, plain)]
        assert found[0] == found[1]
    stored = [normalised(table) for table in (held, plain)]
    assert stored[0].schema == stored[1].schema
    assert stored[0].equals(stored[1])
    assert row_digests([stored[0]["x"]]).tolist() == row_digests([stored[1]["x"]]).tolist()


def _assigned(spec, table):
    splitter = Splitter(spec, table.schema)
    return splitter.assign(table, (0, 0)).tolist(), splitter.names, splitter.notes
