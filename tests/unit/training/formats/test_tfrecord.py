"""TFRecord byte by byte: against the wire format spelled out, protobuf's own library, and damaged files."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from data_contracts.errors import CorruptError
from tests.support.shard_rows import shard_reader
from tests.support.splits import normalised
from tests.unit.training.formats import reference
from tests.unit.training.formats import rows as kinds
from training import formats
from training.formats import kernels, tfrecord

read_shard = shard_reader("tfrecord")

# One feature "a" = [5], spelled out by the wire format.
FIVE = bytes.fromhex("0a0c 0a0a 0a0161 1205 1a03 0a0105")


PROTO = """
name: "example.proto" package: "t" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 type: TYPE_BYTES label: LABEL_REPEATED } }
message_type { name: "FloatList" field { name: "value" number: 1 type: TYPE_FLOAT label: LABEL_REPEATED } }
message_type { name: "Int64List" field { name: "value" number: 1 type: TYPE_INT64 label: LABEL_REPEATED } }
message_type {
  name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".t.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".t.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".t.Int64List" oneof_index: 0 }
}
message_type {
  name: "Features"
  nested_type {
    name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".t.Feature" label: LABEL_OPTIONAL }
  }
  field { name: "feature" number: 1 type: TYPE_MESSAGE type_name: ".t.Features.FeatureEntry" label: LABEL_REPEATED }
}
message_type {
  name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".t.Features" label: LABEL_OPTIONAL }
}
"""


POOL = descriptor_pool.DescriptorPool()
POOL.Add(text_format.Parse(PROTO, descriptor_pb2.FileDescriptorProto()))


def encode(table: pa.Table) -> list[bytes]:
    return [
        bytes(framed.data[start:stop])
        for framed in tfrecord.encode_examples(table, 2**20)
        for start, stop in zip(framed.starts, framed.stops, strict=True)
    ]


def decode(messages: list[bytes], schema: pa.Schema) -> pa.Table:
    stops = np.cumsum([len(message) for message in messages])
    data = np.frombuffer(bytearray(b"".join(messages) + bytes(kernels.SPARE_BYTES)), np.uint8)
    starts = stops - [len(message) for message in messages]
    return tfrecord.decode_examples(tfrecord.Framed(data, starts, stops), schema, schema)


def test_a_message_is_the_bytes_that_the_wire_format_spells():
    table = pa.table({"a": [5]})
    assert encode(table) == [FIVE]
    assert decode([FIVE], table.schema).equals(table)
    # An Int64List without a value; then no feature at all.
    empty = pa.table({"a": pa.array([[], None], pa.list_(pa.int64()))})
    assert encode(empty) == [bytes.fromhex("0a09 0a07 0a0161 1202 1a00"), bytes.fromhex("0a00")]


def _message(feature: str) -> bytes:
    """An example whose feature "a" has these bytes."""
    data = bytes.fromhex(feature)
    for head in ("0a0161 12", "0a", "0a"):
        data = bytes.fromhex(head) + bytes([len(data)]) + data
    return data


INT, FLOATS = pa.int64(), pa.list_(pa.float32())


@pytest.mark.parametrize(
    ("message", "type_"),
    [
        (FIVE[:-1], INT),
        (FIVE + b"\x10\x05", INT),  # an unknown field
        (_message("1a04 0a0105"), INT),  # a field longer than its message
        (_message("1a03 0a0185"), INT),  # a number that is cut off
        (_message("1a0d 0a0b" + "ff" * 10 + "01"), INT),  # a number of more than ten bytes
        (_message("1a02 0805"), INT),  # a number that is not packed
        (_message("1a03 0f0105"), INT),  # an unknown wire type
        (_message("1205 0a03 000000"), INT),  # another list
        (_message("1205 0a03 000000"), FLOATS),  # a number that is cut off
        (b"\x0a", INT),
        (b"\x0a" + b"\xff" * 10 + b"\x01", INT),
        (b"\x0a" + b"\xff" * 9 + b"\x01", INT),
    ],
)
def test_a_message_that_we_do_not_write_is_refused(message, type_):
    good = FIVE if type_ == INT else _message("1206 0a04 00000000")
    with pytest.raises(tfrecord.Malformed, match="it is not a tf.train.Example of this schema$") as error:
        decode([good, message], pa.schema([("a", type_)]))
    assert error.value.row == 1


features = st.fixed_dictionaries(
    {
        "int": st.integers(-(2**63), 2**63 - 1) | st.none(),
        "ints": st.lists(st.integers(-(2**63), 2**63 - 1)) | st.none(),
        "float": st.floats(width=32, allow_nan=False),
        "floats": st.lists(st.floats(width=32, allow_nan=False)),
        "text": st.text() | st.none(),
        "blobs": st.lists(st.binary()) | st.none(),
    }
)
SCHEMA = pa.schema(
    [
        ("int", pa.int64()), ("ints", pa.list_(pa.int64())), ("float", pa.float32()),
        ("floats", pa.list_(pa.float32())), ("text", pa.string()), ("blobs", pa.list_(pa.binary())),
    ]
)  # fmt: skip
LISTS = {
    "int": "int64_list", "ints": "int64_list", "float": "float_list", "floats": "float_list", "text": "bytes_list",
    "blobs": "bytes_list",
}  # fmt: skip


@settings(deadline=None)
@given(st.lists(features, min_size=1, max_size=8))
def test_protobuf_itself_reads_ours_and_we_read_its(rows):
    oracle = message_factory.GetMessageClass(POOL.FindMessageTypeByName("t.Example"))  # protobuf's own
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    assert encode(table) == reference.messages(table)
    for message, row in zip(encode(table), rows, strict=True):
        parsed = oracle.FromString(message)
        expected = {}
        for name, value in row.items():
            if value is not None:
                values = value if isinstance(value, list) else [value.encode() if name == "text" else value]
                expected[name] = (LISTS[name], values)
        found = {
            name: (feature.WhichOneof("kind"), list(getattr(feature, LISTS[name]).value))
            for name, feature in parsed.features.feature.items()
        }
        assert found == expected
    theirs = []
    for row in rows:
        message = oracle()
        for name, value in reversed(row.items()):
            if value is not None:
                feature = getattr(message.features.feature[name], LISTS[name])
                feature.SetInParent()
                feature.value.extend(
                    value if isinstance(value, list) else [value.encode() if name == "text" else value]
                )
        theirs.append(message.SerializeToString())
    assert decode(theirs, SCHEMA).equals(table)


def test_every_flipped_bit_is_noticed_at_its_record(tmp_path):
    path = tmp_path / "train-00003.tfrecord"
    table = pa.table({"a": [5, 5]})
    formats.write_shard("tfrecord", table, path)
    whole = path.read_bytes()
    for bit in range(len(whole) * 8):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        number, place = divmod(bit // 8, 30)
        what = "the checksum of its length" if place < 12 else "its checksum"
        with pytest.raises(CorruptError, match=f"^Shard {path.name}, record {number} at byte {number * 30}: {what} is"):
            read_shard(path, table.schema)


@pytest.mark.parametrize(
    ("column", "type_", "sentence"),
    [
        ([5, 5], pa.string(), "record 0 at byte 0: it is not a tf.train.Example of this schema"),
        ([5, 300], pa.int8(), "record 1 at byte 30: column 'a' does not hold int8: Integer value 300 not in range"),
        ([[1], [1, 2]], pa.int64(), "record 1 at byte 30: column 'a' does not hold int64: it has 2 values"),
        ([b"a", b"\xff"], pa.string(), "record 1 at byte 30: column 'a' does not hold string: Invalid UTF8"),
        (
            [b"12", b"123", None],
            pa.binary(2),
            r"record 1 at byte 31: .*: it has 3 bytes where 2 are",
        ),
        ([5], pa.float64(), "record 0 at byte 0: column 'a' is double, which a tf.train.Example cannot hold"),
    ],
)
def test_rows_of_another_schema_are_refused(column, type_, sentence, tmp_path):
    path = tmp_path / "x.tfrecord"
    formats.write_shard("tfrecord", pa.table({"a": pa.array(column)}), path)
    with pytest.raises(CorruptError, match=f"Shard x.tfrecord, {sentence}"):
        read_shard(path, pa.schema([("a", type_)]))


@pytest.mark.parametrize("read_bytes", [1, 40, 100, 4096])
def test_blocks_are_joined_in_order(read_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(tfrecord, "BLOCK_ROWS", 3)
    monkeypatch.setattr(tfrecord, "READ_BYTES", read_bytes)
    # The lists are null in the first block and in row 3; records differ in length.
    table = normalised(pa.table({"x": range(10), "l": [[n] * (n % 3) if n > 3 else None for n in range(10)]}))
    formats.write_shard("tfrecord", table, tmp_path / "x")
    assert read_shard(tmp_path / "x", table.schema).equals(table)
    assert all(block.num_rows <= 3 for block in tfrecord.read_blocks(tmp_path / "x", table.schema))
    # Rows 0 to 3 have no list; byte 120 is where row 4's record begins.
    assert (tmp_path / "x").read_bytes()[120:].startswith(reference.record(encode(table)[4]))
    with pytest.raises(CorruptError, match="Shard x, record 4 at byte 120: it is not a tf.train"):
        read_shard(tmp_path / "x", pa.schema([("l", pa.list_(pa.string()))]))


@pytest.mark.parametrize("most", [1, 64, 300, 2**20])
def test_the_bytes_do_not_depend_on_what_is_written_at_a_time(most, tmp_path, monkeypatch):
    monkeypatch.setattr(tfrecord, "WRITE_BYTES", most)
    monkeypatch.setattr(tfrecord, "BLOCK_BYTES", most)
    table = pa.concat_tables([normalised(kinds.every_kind())] * 5)
    formats.write_shard("tfrecord", table, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b"".join(map(reference.record, reference.messages(table)))


@settings(deadline=None, max_examples=100)
@given(cut=st.integers(0, 10_000), read_bytes=st.integers(1, 400))
def test_every_truncation_is_noticed_at_its_record(cut, read_bytes, tmp_path_factory):
    path = tmp_path_factory.mktemp("cut") / "x"
    table = normalised(kinds.every_kind())
    formats.write_shard("tfrecord", table, path)
    sizes = [len(reference.record(message)) for message in reference.messages(table)]
    cut %= sum(sizes)
    path.write_bytes(path.read_bytes()[:cut])
    whole = int(np.searchsorted(np.cumsum(sizes), cut, side="right"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfrecord, "READ_BYTES", read_bytes)
        if cut == sum(sizes[:whole]):  # nothing tells it from a shorter file
            assert read_shard(path, table.schema).num_rows == whole
            return
        with pytest.raises(CorruptError, match=f"record {whole} at byte {sum(sizes[:whole])}: the file ends within"):
            read_shard(path, table.schema)
