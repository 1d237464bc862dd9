"""Keeps what a check found in each file, and finds out only what is new: for the contract worker.

Known parts lie in a private folder that the caller filled from the store; new ones are written beside them.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from data_contracts.canonical import canonical, digest
from data_contracts.contract.measures import ROWS, Question
from data_contracts.contract.parts import Settled, added, kept, name_of
from data_contracts.contract.scan.duck import Resources
from data_contracts.file_part import FilePart
from data_contracts.handoffs import SourceFile
from data_contracts.messages.raw_data import ContractRequest
from data_contracts.part_group import GroupedFile, PartGroup, PartSum, cut, grouped
from data_contracts.pipeline_spec import SourceSpec
from data_contracts.profile.record import Profile
from infra.contract.measured_files import FileMeasures, facts_elsewhere, measured_part, parts_elsewhere
from infra.pieces import Cluster
from infra.sources.read import FileFacts, remember_facts
from infra.sources.resolve import NAMED

KNOWN, NEW = "known", "new"

P = TypeVar("P", FilePart, PartGroup)
log = logging.getLogger("trainwright")


def part_name(file: SourceFile, source: SourceSpec) -> str:
    """The file name of a part: the same for the same bytes that are read to the same rows, wherever the file lies."""
    pieces = None if source.pieces is None else source.pieces.model_dump()
    csv = source.csv.model_dump(exclude_defaults=True) if source.csv else {}
    more = [one for one in (file.cut, file.column_types, csv, "without index" * file.hidden_index) if one]
    read = [file.blake3, file.format, file.columns, source.columns, pieces, *more]
    return f"{digest(read)[:40]}.json"


def part_names(request: ContractRequest) -> list[str]:
    """The file names of the parts of a request's files, in their order."""
    return [part_name(file, request.sources[file.source]) for file in request.files]


class FileParts:
    """The parts of a request's files, known and new.

    Args:
        folder: of the parts.
        cluster: other machines, which read the new files instead of this one.
    """

    def __init__(self, request: ContractRequest, folder: Path, cluster: Cluster | None = None) -> None:
        self._request, self._folder, self._cluster = request, folder, cluster
        self._names = part_names(request)
        self._groups = list(cut(self._names))
        self._sum: PartSum | None = None
        self._schemas: dict[str, pa.Schema] = {}
        self._unmeasured: set[str] = set()

    def remember_facts(self) -> None:
        """Have this process know the facts about known files, so that they stay unread, and those that others find."""
        new: list[SourceFile] = []
        for positions, name in self._groups:
            group = self._group(positions, name)
            if group is not None:
                for at, one in zip(positions, group.files, strict=True):
                    self._remember(at, group.schemas[one.schema_at], one)
                continue
            for at in positions:
                part = self._stored(FilePart, self._names[at])
                if part is not None:
                    self._remember(at, part.own, part)
                elif self._request.files[at].format not in NAMED:
                    new.append(self._request.files[at])
        if self._cluster is not None:
            sources, root = self._request.sources, Path(self._request.root)
            for file, facts in zip(new, facts_elsewhere(self._cluster, sources, root, new), strict=True):
                remember_facts(file, sources, facts)

    def _group(self, positions: range, name: str | None, seen: str | None = None) -> PartGroup | None:
        """The group of the files at these positions, as `_stored`."""
        group = self._stored(PartGroup, name, seen)
        return group if group is not None and len(group.files) == len(positions) else None

    def _stored(self, kind: type[P], name: str | None, seen: str | None = None) -> P | None:
        """A part or group that is known or new, under this schema of all files if one is given; else None."""
        for folder in (KNOWN, NEW) if name is not None else ():
            path = self._folder / folder / str(name)
            if path.exists():
                # What cannot be read as a part is measured again: a writer of the store may have sealed anything.
                with contextlib.suppress(ValueError):
                    stored = kind.model_validate_json(path.read_bytes())
                    self._read_schemas(stored.schemas if isinstance(stored, PartGroup) else [stored.own])
                    if seen is None or stored.schema_of_all == seen:
                        return stored
        return None

    def _read_schemas(self, serialized: list[str]) -> None:
        """Read the schemas of files from their hexadecimal digits; ValueError for what is not one."""
        for own in serialized:
            if own not in self._schemas:
                self._schemas[own] = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(own)))

    def _remember(self, at: int, own: str, facts: FilePart | GroupedFile) -> None:
        groups = tuple((rows, size) for rows, size in facts.row_groups)
        known = FileFacts(self._schemas[own], facts.text_from, groups)
        remember_facts(self._request.files[at], self._request.sources, known)

    def settle(self, resources: Resources, questions: dict[int, Question], schema: pa.Schema) -> Settled:
        """The number of rows, and the expectations that hold by what is kept; new files are measured first."""
        wanted = kept([ROWS, *(one for question in questions.values() for one in question.measures)],
                      self._request.sensitive)  # fmt: skip
        seen, self._sum = digest(schema.serialize().to_pybytes().hex()), None
        request = self._request
        measures = FileMeasures(request.sources, Path(request.root), request.sensitive, wanted, schema, seen)
        total, new = PartSum(), self._measured_elsewhere(measures)
        for positions, name in self._groups:
            group = self._group(positions, name, seen)
            if group is not None:
                total.add(group)
                continue
            parts = []
            for at in positions:
                part = self._stored(FilePart, self._names[at], seen)
                if part is None:
                    part, new = self._measured_here(at, measures, resources), new + 1
                if part is None:
                    return 0, set()
                total.add(part)
                parts.append(part)
            if name is not None and (group := grouped(parts)) is not None:
                (self._folder / NEW / name).write_bytes(canonical(group.to_json()))
        self._sum = total
        values = {one: added(one, total.values[name_of(one)]) for one in wanted if name_of(one) in total.values}
        settled = {
            index
            for index, question in questions.items()
            if all(one in values for one in question.measures)
            and question.holds(*(values[one] for one in question.measures))
        }
        log.info("contract: %d of %d files are known; %d of %d expectations are settled file by file, the others read"
                 " all files", len(self._names) - new, len(self._names), len(settled), len(questions))  # fmt: skip
        return total.rows, settled

    def profile(self) -> Profile | None:
        """The profile of all files; None if not every file has a part."""
        return None if self._sum is None else self._sum.profile()

    def _measured_here(self, at: int, wanted: FileMeasures, resources: Resources) -> FilePart | None:
        """A new file's part, measured by this process; None if DuckDB cannot measure it."""
        if self._names[at] in self._unmeasured:
            return None
        part = measured_part(wanted, self._request.files[at], resources)
        return None if part is None else self._written(at, part)

    def _measured_elsewhere(self, wanted: FileMeasures) -> int:
        """Have other machines measure the files without a part under this schema of all files; returns their number."""
        if self._cluster is None:
            return 0
        have: set[str] = set()
        for positions, name in self._groups:
            if self._group(positions, name, wanted.schema_digest) is not None:
                have.update(self._names[at] for at in positions)
        new = {
            name: at
            for at, name in enumerate(self._names)
            if name not in have and self._stored(FilePart, name, wanted.schema_digest) is None
        }
        files = [self._request.files[at] for at in new.values()]
        for at, part in zip(new.values(), parts_elsewhere(self._cluster, wanted, files), strict=True):
            if part is None:
                self._unmeasured.add(self._names[at])
            else:
                self._written(at, part)
        return len(new)

    def _written(self, at: int, part: FilePart) -> FilePart:
        (self._folder / NEW / self._names[at]).write_bytes(canonical(part.to_json()))
        return part
