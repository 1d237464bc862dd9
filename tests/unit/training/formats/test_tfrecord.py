"""TFRecord byte by byte: against the wire format spelled out, protobuf's own library, and damaged files."""

from __future__ import annotations

import struct
from contextlib import suppress

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from data_contracts.errors import CorruptError
from training.formats import example, tfrecord
from training.formats.normal import normalise

# One feature "a" = [5], spelled out by the wire format.
FIVE = bytes.fromhex("0a0c 0a0a 0a0161 1205 1a03 0a0105")


def _oracle():
    """tf.train.Example as protobuf's own library has it, from a descriptor written here."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, kind in (
        ("BytesList", kinds.TYPE_BYTES),
        ("FloatList", kinds.TYPE_FLOAT),
        ("Int64List", kinds.TYPE_INT64),
    ):
        file.message_type.add(name=name).field.add(name="value", number=1, type=kind, label=kinds.LABEL_REPEATED)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in ((1, "bytes_list"), (2, "float_list"), (3, "int64_list")):
        type_name = ".t." + "".join(part.title() for part in name.split("_"))
        feature.field.add(
            name=name, number=number, type=kinds.TYPE_MESSAGE, type_name=type_name, label=1, oneof_index=0
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=kinds.TYPE_MESSAGE, type_name=".t.Feature", label=1)
    features.field.add(name="feature", number=1, type=kinds.TYPE_MESSAGE, type_name=".t.Features.FeatureEntry", label=3)
    message = file.message_type.add(name="Example")
    message.field.add(name="features", number=1, type=kinds.TYPE_MESSAGE, type_name=".t.Features", label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))


def test_a_message_is_the_bytes_that_the_wire_format_spells():
    table = pa.table({"a": [5]})
    assert example.encode(table) == [FIVE]
    assert example.decode([memoryview(FIVE)], table.schema).equals(table)


def test_null_and_empty_are_told_apart():
    table = pa.table({"a": pa.array([[], None], pa.list_(pa.int64()))})
    # An Int64List without a value; then no feature at all.
    assert example.encode(table) == [bytes.fromhex("0a09 0a07 0a0161 1202 1a00"), bytes.fromhex("0a00")]


def _message(feature: str) -> bytes:
    """An example whose feature "a" has these bytes."""
    data = bytes.fromhex(feature)
    for head in ("0a0161 12", "0a", "0a"):
        data = bytes.fromhex(head) + bytes([len(data)]) + data
    return data


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (FIVE[:-1], "row 0: a field is longer than its message"),
        (_message("1a04 0a0105"), "row 0: a field is longer than its message"),
        (_message("1a03 0a0185"), "column 'a' does not hold int64: a number is cut off"),
        (_message("1a0d 0a0b" + "ff" * 10 + "01"), "column 'a' does not hold int64: a number has more than ten bytes"),
        (_message("1a03 0f0105"), "row 0: wire type 7 is unknown"),
        (b"\x0a", "row 0 is no tf.train.Example"),
        (_message("1a04 0a020505"), "row 0 has 2 values where one is meant"),
        (_message("1205 0a03 000000"), "feature 'a' is a float list, the schema asks for int64"),
    ],
)
def test_a_message_that_cannot_be_read_is_refused(message, sentence):
    with pytest.raises(example.Malformed, match=sentence):
        example.decode([memoryview(message)], pa.schema([("a", pa.int64())]))


def test_a_float_that_is_cut_off_is_refused():
    messages = [memoryview(_message("1205 0a03 000000")), memoryview(_message("1207 0a05 0000000000"))]
    with pytest.raises(example.Malformed, match="column 'a' does not hold .*: a number is cut off"):
        example.decode(messages, pa.schema([("a", pa.list_(pa.float32()))]))


def test_a_record_is_framed_by_length_and_masked_checksums(tmp_path):
    path = tmp_path / "x.tfrecord"
    tfrecord.write_shard(pa.table({"a": [5, 5]}), path)

    def masked(data: bytes) -> bytes:
        crc = crc32c(data)
        return struct.pack("<I", (((crc >> 15) | (crc << 17 & 0xFFFFFFFF)) + 0xA282EAD8) % 2**32)

    length = struct.pack("<Q", len(FIVE))
    assert path.read_bytes() == 2 * (length + masked(length) + FIVE + masked(FIVE))
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C


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
    oracle = _oracle()
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    for message, row in zip(example.encode(table), rows, strict=True):
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
        theirs.append(memoryview(message.SerializeToString()))
    assert example.decode(theirs, SCHEMA).equals(table)


def test_unpacked_numbers_and_unknown_fields_are_read():
    # a: an unknown field 7, then Int64List with 5 and 300, each a field of its own
    feature = bytes.fromhex("3a0100") + bytes.fromhex("1a05 0805 08ac02")
    entry = b"\x0a\x01a\x12" + bytes([len(feature)]) + feature
    body = b"\x0a" + bytes([len(entry)]) + entry
    unpacked = b"\x0a" + bytes([len(body)]) + body + bytes.fromhex("1005")
    table = example.decode([memoryview(unpacked)], pa.schema([("a", pa.list_(pa.int64()))]))
    assert table.to_pylist() == [{"a": [5, 300]}]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ({0: 1}, "record 0 at byte 0: the checksum of its length is wrong"),
        ({9: 1}, "record 0 at byte 0: the checksum of its length is wrong"),
        ({13: 1}, "record 0 at byte 0: its checksum is wrong"),
        ({28: 1}, "record 0 at byte 0: its checksum is wrong"),
        ({30: 1}, "record 1 at byte 30: the checksum of its length is wrong"),
        ({59: 128}, "record 1 at byte 30: its checksum is wrong"),
    ],
)
def test_a_flipped_bit_is_named_with_record_and_place(damage, sentence, tmp_path):
    path = tmp_path / "train-00003.tfrecord"
    table = pa.table({"a": [5, 5]})
    tfrecord.write_shard(table, path)
    data = bytearray(path.read_bytes())
    for place, bit in damage.items():
        data[place] ^= bit
    path.write_bytes(data)
    with pytest.raises(CorruptError, match=f"Shard train-00003.tfrecord, {sentence}"):
        tfrecord.read_shard(path, table.schema)


def test_every_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "x.tfrecord"
    table = pa.table({"a": [5, 5]})
    tfrecord.write_shard(table, path)
    whole = path.read_bytes()
    for bit in range(len(whole) * 8):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.raises(CorruptError):
            tfrecord.read_shard(path, table.schema)


@pytest.mark.parametrize(
    ("column", "type_", "sentence"),
    [
        ([5], pa.string(), "row 0: feature 'a' is a int64 list, the schema asks for bytes"),
        ([300], pa.int8(), "column 'a' does not hold int8"),
        ([[1, 2]], pa.int64(), "column 'a' does not hold int64: row 0 has 2 values where one is meant"),
    ],
)
def test_rows_of_another_schema_are_refused(column, type_, sentence, tmp_path):
    path = tmp_path / "x.tfrecord"
    tfrecord.write_shard(pa.table({"a": pa.array(column)}), path)
    with pytest.raises(CorruptError, match=sentence):
        tfrecord.read_shard(path, pa.schema([("a", type_)]))


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_bytes_that_are_no_example_end_in_one_error_and_never_in_a_hang(data):
    with suppress(example.Malformed):
        example.decode([memoryview(data)], pa.schema([("a", pa.int64()), ("b", pa.list_(pa.float32()))]))


def test_blocks_are_joined_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(tfrecord, "BLOCK_ROWS", 3)
    # The lists are null in the first block and in row 3.
    table = normalise(pa.table({"x": range(10), "l": [[n] * (n % 3) if n > 3 else None for n in range(10)]}))
    tfrecord.write_shard(table, tmp_path / "x")
    assert tfrecord.read_shard(tmp_path / "x", table.schema).equals(table)
    with pytest.raises(CorruptError, match="Shard x, counting from record 3: row 1: feature 'l' is a int64 list"):
        tfrecord.read_shard(tmp_path / "x", pa.schema([("l", pa.list_(pa.string()))]))
