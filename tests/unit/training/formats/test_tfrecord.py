"""TFRecord byte by byte: against the wire format spelled out, protobuf's own library, and damaged files."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from data_contracts.errors import CorruptError
from tests.support.splits import normalised
from training.formats import kernels, tfrecord


def _beside(name: str):
    spec = importlib.util.spec_from_file_location(f"formats_{name}", Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference, kinds = _beside("reference"), _beside("rows")

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


def test_null_and_empty_are_told_apart():
    table = pa.table({"a": pa.array([[], None], pa.list_(pa.int64()))})
    # An Int64List without a value; then no feature at all.
    assert encode(table) == [bytes.fromhex("0a09 0a07 0a0161 1202 1a00"), bytes.fromhex("0a00")]


def _message(feature: str) -> bytes:
    """An example whose feature "a" has these bytes."""
    data = bytes.fromhex(feature)
    for head in ("0a0161 12", "0a", "0a"):
        data = bytes.fromhex(head) + bytes([len(data)]) + data
    return data


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (FIVE[:-1], "a field is longer than its message"),
        (_message("1a04 0a0105"), "a field is longer than its message"),
        (_message("1a03 0a0185"), "column 'a' does not hold int64: a number is cut off"),
        (_message("1a0d 0a0b" + "ff" * 10 + "01"), "column 'a' does not hold int64: a number has more than ten bytes"),
        (_message("1a03 0f0105"), "column 'a' does not hold int64: it has a field of an unknown wire type"),
        (b"\x0a", "it is not a tf.train.Example"),
        (b"\x0a" + b"\xff" * 10 + b"\x01", "it is not a tf.train.Example"),
        (b"\x0a" + b"\xff" * 9 + b"\x01", "a field is longer than its message"),
        (_message("1a04 0a020505"), "column 'a' does not hold int64: it has 2 values where one is meant"),
        (_message("1205 0a03 000000"), "feature 'a' is a float list, the schema asks for int64"),
    ],
)
def test_a_message_that_cannot_be_read_is_refused(message, sentence):
    with pytest.raises(tfrecord.Malformed, match=f"^{sentence}") as error:
        decode([FIVE, message], pa.schema([("a", pa.int64())]))
    assert error.value.row == 1


def test_a_float_that_is_cut_off_is_refused():
    messages = [_message("1206 0a04 00000000"), _message("1205 0a03 000000"), _message("1207 0a05 0000000000")]
    with pytest.raises(tfrecord.Malformed, match="column 'a' does not hold .*: a number is cut off") as error:
        decode(messages, pa.schema([("a", pa.list_(pa.float32()))]))
    assert error.value.row == 1


def test_bytes_of_another_length_than_a_tensors_are_refused():
    table = pa.table({"a": pa.array([b"12", b"123", None])})
    with pytest.raises(tfrecord.Malformed, match="it has 3 bytes where 2 are meant") as error:
        decode(encode(table), pa.schema([("a", pa.binary(2))]))
    assert error.value.row == 1


def test_a_type_that_an_example_cannot_hold_is_never_read_as_nulls():
    with pytest.raises(tfrecord.Malformed, match="'a' is double, which a tf.train.Example cannot hold"):
        decode([FIVE], pa.schema([("a", pa.float64())]))


def test_a_record_is_framed_by_length_and_masked_checksums(tmp_path):
    path = tmp_path / "x.tfrecord"
    tfrecord.write_shard(pa.table({"a": [5, 5]}), path)
    assert path.read_bytes() == 2 * reference.record(FIVE)
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C


def test_every_kind_of_column_is_written_as_the_wire_format_says(tmp_path):
    table = normalised(kinds.every_kind())
    assert encode(table) == reference.messages(table)


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


entries = st.one_of(
    st.tuples(st.sampled_from(["int", "more"]), st.just(reference.INT64), st.sampled_from([[-1], [0], [5], [300]])),
    st.tuples(st.just("floats"), st.just(reference.FLOAT), st.lists(st.integers(0, 3), max_size=2)),
    st.tuples(st.just("text"), st.just(reference.BYTES), st.sampled_from([[b""], [b"ab"], [b"cd" * 100]])),
    st.tuples(st.sampled_from(["other", "in", ""]), st.sampled_from([1, 2, 3]), st.just([])),
)


@settings(deadline=None, max_examples=200)
@given(rows=st.lists(st.lists(entries, max_size=6), min_size=1, max_size=8), split=st.booleans(), last=st.booleans())
def test_entries_in_any_order_and_number_are_read_and_the_last_of_a_name_counts(rows, split, last):
    schema = pa.schema(
        [("text", pa.string()), ("int", pa.int64()), ("more", pa.int64()), ("floats", pa.list_(pa.float32()))]
    )
    messages, expected = [], []
    for row in rows:
        parts = [reference.entry(*one, name_last=last) for one in row]
        # Messages of one field are merged, so features may also stand in several.
        bodies = parts if split else [b"".join(parts)]
        messages.append(b"".join(reference.field(1, body) for body in bodies))
        found = {name: values for name, _, values in row}
        expected.append(
            {
                "int": found.get("int", [None])[0],
                "more": found.get("more", [None])[0],
                "floats": found.get("floats"),
                "text": found["text"][0].decode() if "text" in found else None,
            }
        )
    assert decode(messages, schema).to_pylist() == expected


def test_unpacked_numbers_and_unknown_fields_are_read():
    # a: an unknown field 7, then Int64List with 5 and 300, each a field of its own
    feature = bytes.fromhex("3a0100") + bytes.fromhex("1a05 0805 08ac02")
    entry = b"\x0a\x01a\x12" + bytes([len(feature)]) + feature
    body = b"\x0a" + bytes([len(entry)]) + entry
    unpacked = b"\x0a" + bytes([len(body)]) + body + bytes.fromhex("1005")
    table = decode([unpacked], pa.schema([("a", pa.list_(pa.int64()))]))
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
        ([5, 5], pa.string(), "record 0 at byte 0: feature 'a' is a int64 list, the schema asks for bytes"),
        ([5, 300], pa.int8(), "record 1 at byte 30: column 'a' does not hold int8: Integer value 300 not in range"),
        ([[1], [1, 2]], pa.int64(), "record 1 at byte 30: column 'a' does not hold int64: it has 2 values"),
        ([b"a", b"\xff"], pa.string(), "record 1 at byte 30: column 'a' does not hold string: Invalid UTF8"),
    ],
)
def test_rows_of_another_schema_are_refused(column, type_, sentence, tmp_path):
    path = tmp_path / "x.tfrecord"
    tfrecord.write_shard(pa.table({"a": pa.array(column)}), path)
    with pytest.raises(CorruptError, match=f"Shard x.tfrecord, {sentence}"):
        tfrecord.read_shard(path, pa.schema([("a", type_)]))


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_a_damaged_message_ends_in_one_error_and_never_beyond_its_end(data):
    table = normalised(kinds.every_kind())
    message = bytearray(encode(table)[data.draw(st.integers(0, 2))])
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    message = bytes(message[: data.draw(st.integers(0, len(message)))])
    with suppress(tfrecord.Malformed):
        found = decode([message], table.schema)
        found.validate(full=True)
        assert (found.num_rows, found.schema) == (1, table.schema)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_bytes_that_are_no_example_end_in_one_error_and_never_in_a_hang(data):
    schema = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.float32()))])
    with suppress(tfrecord.Malformed):
        found = decode([data], schema)
        assert (found.num_rows, found.schema) == (1, schema)


@pytest.mark.parametrize("read_bytes", [1, 40, 100, 4096])
def test_blocks_are_joined_in_order(read_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(tfrecord, "BLOCK_ROWS", 3)
    monkeypatch.setattr(tfrecord, "READ_BYTES", read_bytes)
    # The lists are null in the first block and in row 3; records differ in length.
    table = normalised(pa.table({"x": range(10), "l": [[n] * (n % 3) if n > 3 else None for n in range(10)]}))
    tfrecord.write_shard(table, tmp_path / "x")
    assert tfrecord.read_shard(tmp_path / "x", table.schema).equals(table)
    assert tfrecord.num_rows(tmp_path / "x") == 10
    assert all(block.num_rows <= 3 for block in tfrecord.read_blocks(tmp_path / "x", table.schema))
    # Rows 0 to 3 have no list; byte 120 is where row 4's record begins.
    assert (tmp_path / "x").read_bytes()[120:].startswith(reference.record(encode(table)[4]))
    with pytest.raises(CorruptError, match="Shard x, record 4 at byte 120: feature 'l' is a int64 list"):
        tfrecord.read_shard(tmp_path / "x", pa.schema([("l", pa.list_(pa.string()))]))


@pytest.mark.parametrize("most", [1, 64, 300, 2**20])
def test_the_bytes_do_not_depend_on_what_is_written_at_a_time(most, tmp_path, monkeypatch):
    monkeypatch.setattr(tfrecord, "WRITE_BYTES", most)
    monkeypatch.setattr(tfrecord, "BLOCK_BYTES", most)
    table = pa.concat_tables([normalised(kinds.every_kind())] * 5)
    tfrecord.write_shard(table, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b"".join(map(reference.record, reference.messages(table)))


@settings(deadline=None, max_examples=200)
@given(cut=st.integers(0, 10_000), read_bytes=st.integers(1, 400))
def test_every_truncation_is_noticed_at_its_record(cut, read_bytes, tmp_path_factory):
    path = tmp_path_factory.mktemp("cut") / "x"
    table = normalised(kinds.every_kind())
    tfrecord.write_shard(table, path)
    sizes = [len(reference.record(message)) for message in reference.messages(table)]
    cut %= sum(sizes)
    path.write_bytes(path.read_bytes()[:cut])
    whole = int(np.searchsorted(np.cumsum(sizes), cut, side="right"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfrecord, "READ_BYTES", read_bytes)
        if cut == sum(sizes[:whole]):  # nothing tells it from a shorter file
            assert tfrecord.num_rows(path) == whole
            return
        with pytest.raises(CorruptError, match=f"record {whole} at byte {sum(sizes[:whole])}: the file ends within"):
            tfrecord.read_shard(path, table.schema)


def test_a_record_that_claims_to_be_larger_than_the_file_takes_no_memory(tmp_path):
    for size in (2**40, 2**63 - 1, 2**64 - 1):
        length = size.to_bytes(8, "little")
        # A record of those 8 bytes ends with their checksum.
        (tmp_path / "x").write_bytes(length + reference.record(length)[-4:] + b"data")
        with pytest.raises(CorruptError, match="record 0 at byte 0: the file ends within a record"):
            tfrecord.num_rows(tmp_path / "x")
