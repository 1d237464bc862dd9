"""Keeps what a check found in each file, and finds out only what is new: for the contract worker.

Known parts lie in a private folder that the caller filled from the store; new ones are written beside them.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from data_contracts.canonical import canonical, digest
from data_contracts.contract.duck import Resources
from data_contracts.contract.measures import ROWS, Measure, Question
from data_contracts.contract.parts import Settled, added, kept, name_of, storable
from data_contracts.contract.rows import Data
from data_contracts.contract.scan import scanned
from data_contracts.file_part import FilePart
from data_contracts.handoffs import SourceFile
from data_contracts.messages.raw_data import ContractRequest
from data_contracts.pipeline_spec import SourceSpec
from data_contracts.profile.merge import Merger
from data_contracts.profile.record import Profile
from infra.contract.profiles import profiled
from infra.sources import Selection, file_facts, parquet_in_place, read_batches
from infra.sources.read import FileFacts, remember_facts

KNOWN, NEW = "known", "new"

log = logging.getLogger("trainwright")


def part_name(file: SourceFile, source: SourceSpec) -> str:
    """The file name of a part: the same for the same bytes that are read to the same rows, wherever the file lies."""
    pieces = None if source.pieces is None else source.pieces.model_dump()
    return f"{digest([file.blake3, file.format, file.columns, source.columns, pieces])[:40]}.json"


class FileParts:
    """The parts of a request's files, known and new; the facts of known files are remembered, so they stay unread."""

    def __init__(self, request: ContractRequest, folder: Path) -> None:
        self._request, self._folder = request, folder
        self._names = [part_name(file, request.sources[file.source]) for file in request.files]
        self._known: dict[str, FilePart] = {}
        self._complete = False
        for name, file in zip(self._names, request.files, strict=True):
            path = self._folder / KNOWN / name
            if name not in self._known and path.exists():
                self._known[name] = part = FilePart.model_validate_json(path.read_bytes())
                schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(part.own)))
                groups = tuple((rows, size) for rows, size in part.row_groups)
                remember_facts(file, request.sources, FileFacts(schema, part.text_from, groups))

    def settle(self, resources: Resources, questions: dict[int, Question], schema: pa.Schema) -> Settled:
        """The number of rows, and the expectations that hold by what is kept; new files are measured first."""
        wanted = kept([ROWS, *(one for question in questions.values() for one in question.measures)],
                      self._request.sensitive)  # fmt: skip
        seen = digest(schema.serialize().to_pybytes().hex())
        self._known = {name: part for name, part in self._known.items() if part.schema_of_all == seen}
        before = len(self._known)
        for name, file in zip(self._names, self._request.files, strict=True):
            if name not in self._known:
                part = self._measured(file, wanted, schema, seen, resources)
                if part is None:
                    return 0, set()
                self._known[name] = part
        self._complete = True
        parts = [self._known[name] for name in self._names]
        values: dict[Measure, Any] = {}
        for one in wanted:
            if all(name_of(one) in part.values for part in parts):
                values[one] = added(one, [part.values[name_of(one)] for part in parts])
        settled = {
            index
            for index, question in questions.items()
            if all(one in values for one in question.measures)
            and question.holds(*(values[one] for one in question.measures))
        }
        log.info("contract: %d of %d files are known; %d of %d expectations are settled file by file, the others read"
                 " all files", before, len(parts), len(settled), len(questions))  # fmt: skip
        return sum(part.rows for part in parts), settled

    def profile(self) -> Profile | None:
        """The profile of all files; None if not every file has a part."""
        if not self._complete:
            return None
        merger = Merger()
        for name in self._names:
            merger.add(self._known[name].profile)
        return merger.record()

    def _measured(
        self, file: SourceFile, wanted: list[Measure], schema: pa.Schema, seen: str, resources: Resources
    ) -> FilePart | None:
        """A new file's part, written to the folder; None if DuckDB cannot measure it."""
        request = self._request
        sources, root = request.sources, Path(request.root)
        select = Selection(schema=schema)

        def read(columns: list[str] | None) -> Any:
            for batch in read_batches([file], sources, root=root, selection=replace(select, columns=columns)):
                resources.moved()
                yield batch

        columns = sorted({name for one in wanted for name in one.columns}) or schema.names[:1]
        data = Data(schema, read, lambda: parquet_in_place([file], sources, root))
        values = scanned(wanted, data, columns, resources)
        profile = profiled(
            [file],
            sources,
            root,
            selection=select,
            sensitive=request.sensitive,
            on_batch=resources.moved,
            empty=True,
        )
        if values is None or profile is None:
            return None
        facts = file_facts(file, sources, root)
        part = FilePart(
            own=facts.schema.serialize().to_pybytes().hex(),
            text_from=facts.text_from,
            row_groups=list(facts.row_groups),
            schema_of_all=seen,
            rows=values[ROWS],
            values={name_of(one): value for one, value in values.items() if storable(value)},
            profile=profile,
        )
        target = self._folder / NEW / part_name(file, sources[file.source])
        target.write_bytes(canonical(part.to_json()))
        return part
