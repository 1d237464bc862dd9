"""The output file of a prediction, and the unfinished work beside it: `.NAME.trainwright`, a private folder.
Torch-free.

    record.json                what decides the result; work that began with another record is removed
    part-<first>-<end>.arrow   finished predictions of the rows FIRST to END; complete or absent
    whole                      the output file while it is joined
    lock                       held while a process works here

Finished parts are joined to one file, Parquet or CSV, by its suffix. The bytes depend on the rows alone,
not on how they are divided into parts.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from data_contracts.errors import StorageUnavailable, UsageError
from data_contracts.quoting import column_shown
from infra import files
from infra.files import replace_json
from infra.written_files import record_written
from training.formats.parquet import TableFile

# Of a Parquet file; its bytes depend on it.
GROUP_ROWS = 2**16
SUFFIXES = (".parquet", ".csv")
# A child whose parent was killed ends within a second, and holds the lock until then.
WAIT_S = 10.0
_PART = re.compile(r"part-(\d{15})-(\d{15})\.arrow")


def suffix_of(output: Path) -> str:
    """The suffix that decides the format; UsageError for any other."""
    suffix = output.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(
            f"The format of {output.name or output} is not clear from its name.",
            remedy="End it in .parquet or .csv.",
        )
    return suffix


def refuse_columns(schema: pa.Schema, output: Path) -> None:
    """UsageError for a column that the format cannot hold."""
    if suffix_of(output) == ".parquet":
        return
    for field in schema:
        kind, vector = field.type, _is_vector(field.type)
        text = pa.types.is_string(kind) or pa.types.is_temporal(kind) or _is_number(kind)
        if not text and not vector:
            raise UsageError(
                f"{output.name}: the column {field.name} is {kind}, which this format cannot hold.",
                remedy="Write a file that ends in .parquet, or leave the column out of --keep.",
            )
    refuse_twice(names_in(schema, output))


def refuse_twice(names: Collection[str]) -> None:
    """UsageError if two columns of the output have one name."""
    twice = next((name for name, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        raise UsageError(
            f"Two columns of the output would be called {column_shown(twice)}.",
            remedy="Leave it out of --keep, or rename the column.",
        )


def join(batches: Iterable[pa.RecordBatch], schema: pa.Schema, output: Path, target: Path) -> None:
    """Write all rows to `target` in the format of `output`'s suffix, in memory for some batches."""
    if suffix_of(output) == ".csv":
        _csv(batches, schema, target)
        return
    table = TableFile(target, GROUP_ROWS)
    for batch in batches:
        table.append(pa.Table.from_batches([batch], schema))
    if not table.close():
        pq.write_table(schema.empty_table(), target)


def names_in(schema: pa.Schema, output: Path) -> list[str]:
    """The columns of the file: in CSV, each value of a vector has one."""
    return _flat(schema.empty_table()).schema.names if suffix_of(output) == ".csv" else schema.names


def _csv(batches: Iterable[pa.RecordBatch], schema: pa.Schema, target: Path) -> None:
    # Not through a writer for all batches, whose constructor takes the header from a schema without lists.
    flat = _flat(schema.empty_table())
    with pyarrow.csv.CSVWriter(target, flat.schema) as writer:
        for batch in batches:
            writer.write_table(_flat(pa.Table.from_batches([batch])))


def _flat(table: pa.Table) -> pa.Table:
    """Each value of a vector as a column of its own."""
    names: list[str] = []
    columns: list[pa.ChunkedArray] = []
    for field in table.schema:
        column = table.column(field.name)
        if not pa.types.is_fixed_size_list(field.type):
            names.append(field.name)
            columns.append(column)
            continue
        for at in range(field.type.list_size):
            names.append(f"{field.name}_{at}")
            columns.append(pc.list_element(column, at))
    return pa.table(columns, names)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_vector(kind: pa.DataType) -> bool:
    fixed = pa.types.is_fixed_size_list(kind)
    return bool(fixed and _is_number(kind.value_type))


def read_parts(paths: Iterable[Path], on_batch: Callable[[int], None] = lambda rows: None) -> Iterator[pa.RecordBatch]:
    """The batches of parts, in order; not mapped into memory, where their pages would count as this process's."""
    for path in paths:
        with contextlib.closing(pa.OSFile(str(path))) as file, pa.ipc.open_file(file) as reader:
            for at in range(reader.num_record_batches):
                batch = reader.get_batch(at)
                on_batch(batch.num_rows)
                yield batch


def schema_of(path: Path) -> pa.Schema:
    """The columns of a part."""
    with contextlib.closing(pa.OSFile(str(path))) as file, pa.ipc.open_file(file) as reader:
        return reader.schema


class UnfinishedOutput:
    """The folder of unfinished work, locked.

    Attributes:
        whole: where the output is joined; unfinished: where the next part is written.
        begun_anew: what differs from the earlier work that was removed; "" if there was none.
    """

    def __init__(self, output: Path, identity: Mapping[str, str]) -> None:
        """Lock the folder and read what is there.

        Raises: UsageError if another process writes this output, or the folder is not this user's.
        """
        self.output, self.folder = output, unfinished_work(output)
        self.whole, self.unfinished = self.folder / "whole", self.folder / "unfinished"
        self.begun_anew = ""
        with room(output, 0):
            self._lock = self._locked()
            self._keep_only(identity)

    def parts(self) -> list[tuple[int, int, Path]]:
        """First and end row of each finished part, without gaps from row 0 on; files beside them are removed."""
        found, at = [], 0
        listed = [(match, path) for path in self.folder.iterdir() if (match := _PART.fullmatch(path.name))]
        for match, path in sorted(listed, key=lambda one: (int(one[0][1]), -int(one[0][2]))):
            if int(match[1]) == at:
                at = int(match[2])
                found.append((int(match[1]), at, path))
            else:
                path.unlink()
        return found

    def finish(self, first: int, end: int) -> None:
        """Name the part that was written."""
        os.replace(self.unfinished, self.folder / f"part-{first:015d}-{end:015d}.arrow")

    def publish(self, *, overwrite: bool) -> None:
        """Give the joined file its name, in one step, and remove the folder; UsageError if the name is taken."""
        record_written(self.whole, named=self.output)
        if overwrite:
            os.replace(self.whole, self.output)
        else:
            self._name_new()
        self.remove()

    def remove(self) -> None:
        """Remove the folder with all that is in it; the lock last, because another process may wait for it."""
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                if path.name != "lock":
                    path.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)

    def _name_new(self) -> None:
        try:
            os.link(self.whole, self.output)  # unlike a rename, it never replaces a file
        except FileExistsError:
            raise output_exists(self.output) from None
        except OSError:  # a file system without hard links
            if os.path.lexists(self.output):
                raise output_exists(self.output) from None
            os.replace(self.whole, self.output)

    def _locked(self) -> int:
        deadline = time.monotonic() + WAIT_S
        while True:
            with contextlib.suppress(FileExistsError):
                self.folder.mkdir(mode=0o700)
            facts = os.lstat(self.folder)
            if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
                raise UsageError(f"{self.folder} is not a folder of this user.", remedy="Remove it.")
            with contextlib.suppress(FileNotFoundError):
                handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                if _taken(handle, self.folder / "lock"):
                    return handle
                os.close(handle)
            if time.monotonic() > deadline:
                raise UsageError(
                    f"Another process is writing {self.output}.",
                    remedy="Wait until it has ended, or name another file.",
                )
            time.sleep(0.1)

    def _keep_only(self, identity: Mapping[str, str]) -> None:
        record = self.folder / "record.json"
        before: dict[str, str] | None = None
        with contextlib.suppress(FileNotFoundError, ValueError):
            before = json.loads(record.read_text())
        if before == dict(identity):
            return
        others = [path for path in self.folder.iterdir() if path.name != "lock"]
        for path in sorted(others, key=lambda path: path.name != record.name):  # the record first
            path.unlink()
        if before is not None and isinstance(before, dict):
            differ = [name for name in identity if identity[name] != before.get(name)]
            self.begun_anew = " and ".join(differ) or "the settings"
        replace_json(record, dict(identity))


def unfinished_work(output: Path) -> Path:
    """The folder beside an output that the work is in until it is complete."""
    return output.with_name(f".{output.name}.trainwright")


def output_exists(output: Path) -> UsageError:
    """The error for an output that exists."""
    return UsageError(f"{output} exists already.", remedy="Name another file, or replace it with --overwrite.")


@contextlib.contextmanager
def room(output: Path, rows: int) -> Iterator[None]:
    """Turn a full or broken disk into one sentence that says what is kept."""
    try:
        yield
    except OSError as error:
        kept = f" The predictions of {rows:,} rows are kept." if rows else ""
        raise StorageUnavailable(
            f"{output} cannot be written: {os.strerror(error.errno) if error.errno else error}.{kept}",
            remedy="Free space, or permit this user to write there, and run the same command again.",
        ) from error


def _taken(handle: int, path: Path) -> bool:
    """Whether this process has the lock now, on the file that still is at `path`."""
    if not files.take(handle):
        return False
    with contextlib.suppress(FileNotFoundError):
        return os.stat(path).st_ino == os.fstat(handle).st_ino
    return False
