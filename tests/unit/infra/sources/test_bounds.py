"""Lengths that a file states are never trusted without a bound."""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data_contracts.errors import UsageError
from infra.sources import tables
from tests.support.files import write_files
from tests.unit.infra.sources.conftest import Raw

MIB = 1 << 20


class Endless:
    """A stream without an end; counts what is taken of it."""

    def __init__(self, piece: bytes) -> None:
        self.piece, self.taken = piece, 0

    def read(self, size: int) -> bytes:
        self.taken += size
        return (self.piece * (size // len(self.piece) + 1))[:size]


@pytest.mark.parametrize("piece", [b"a", b" ", b'{"a": 1} '])
def test_a_row_without_an_end_is_refused_after_two_blocks(piece: bytes) -> None:
    stream: Any = Endless(piece)
    with pytest.raises(UsageError, match=r"^x: row 0 is larger than 8 MiB\. Write JSON Lines, one object a line"):
        tables.json_schema(stream, "x")
    assert stream.taken == 2 * tables._BLOCK


@pytest.mark.parametrize("before", [0, 1, 3])
@pytest.mark.parametrize("over", [-1, 0, 1])
def test_the_limit_is_one_row_wherever_it_stands(before: int, over: int, raw: Raw) -> None:
    row = json.dumps({"a": ""}).encode()
    large = json.dumps({"a": "x" * (tables._MOST_LINE_BYTES - len(row) + over)}).encode()
    assert len(large) == tables._MOST_LINE_BYTES + over
    raw.write("a.jsonl", b"\n".join([row] * before + [large] + [row] * 2))
    if over > 0:
        with pytest.raises(UsageError, match=f"row {before} is larger than 8 MiB"):
            raw.read("a.jsonl")
    else:
        assert raw.read("a.jsonl").num_rows == before + 3


READ = """
import os, sys
from pathlib import Path
from infra.sources.read import read_batches
from infra.sources.resolve import resolve_sources
from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import SourceSpec
root = Path(sys.argv[1])
for name in sys.argv[2:]:
    specs = [SourceSpec.model_validate(name)]
    try:
        files = resolve_sources(specs, root=root, window=None, window_path=None, cache=root / "cache")
        print(sum(batch.num_rows for batch in read_batches(files, specs, root=root)))
    except UsageError as error:
        print(error)
sys.stdout.flush()
os._exit(0)  # under the limit Arrow's threads may not end in order
"""


def read_in_a_process(folder: Path, sentences: dict[str, str], most_bytes: int = resource.RLIM_INFINITY) -> None:
    """Read these files in one process of its own, which lives on after each and says of each its sentence."""
    done = subprocess.run(
        [sys.executable, "-c", READ, str(folder), *sentences], capture_output=True, text=True, timeout=300, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for line, sentence in zip(done.stdout.splitlines(), sentences.values(), strict=True):
        assert sentence in line


def test_a_small_file_that_unpacks_to_much_is_refused_in_little_memory(tmp_path: Path) -> None:
    beginnings = {"a.jsonl.gz": b'{"a": "' + bytes(1), "b.csv.gz": b'a,b\n"', "c.csv.gz": b""}
    much = gzip.compress(b"a" * MIB, 1) * 1200
    for name, beginning in beginnings.items():
        assert (tmp_path / name).write_bytes(gzip.compress(beginning) + much) < 10 * MIB
    read_in_a_process(tmp_path, dict.fromkeys(beginnings, "larger than 8 MiB"), 800 * MIB)


def parquet(depth: int) -> bytes:
    """A Parquet file without rows whose column `x` lies below so many groups, in Thrift's compact form."""
    group, leaf = b"\x35\x00\x18\x01g\x15\x02\x00", b"\x15\x02\x25\x00\x18\x01x\x00"
    number, size = depth + 2, b""
    while number:
        size, number = size + bytes([number & 127 | (128 if number > 127 else 0)]), number >> 7
    elements = b"\x48\x01s\x15\x02\x00" + group * depth + leaf
    footer = b"\x15\x04\x19\xfc" + size + elements + b"\x16\x00\x19\x0c\x00"
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"


DEEP = {
    "lists.jsonl": (b'{"a": 1}\n{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "from row 1 on, a value is nested"),
    "objects.jsonl": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "from row 0 on, a value is nested deeper than 100"),
    "many.jsonl": (b'{"a":\n' * 100_000 + b"1" + b"}" * 100_000, "from row 0 on, a value is nested deeper than 100"),
    "deep.parquet": (parquet(100_000), "is not a Parquet file (Parquet schema too deeply nested"),
    "shallow.parquet": (parquet(3), "0"),
}


def test_a_deep_file_is_refused_and_ends_no_process(tmp_path: Path) -> None:
    write_files(tmp_path, {name: data for name, (data, _) in DEEP.items()})
    read_in_a_process(tmp_path, {name: sentence for name, (_, sentence) in DEEP.items()})


def test_a_first_line_may_be_as_long_as_a_row(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_HEADER_BYTES", 8)
    names = [f"c{number:03}" for number in range(40)]
    raw.write("a.csv", ",".join(names) + "\n" + ",".join(map(str, range(40))) + "\n")
    assert raw.read("a.csv", columns=["c039"]).to_pydict() == {"c039": [39]}
    monkeypatch.setattr(tables, "_BLOCK", 64)
    with pytest.raises(UsageError, match=r"a.csv: the first line is larger than 0 MiB"):
        raw.read("a.csv")
