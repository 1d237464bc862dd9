"""The child process of the validate stage: checks raw data against its contract.

Run as `python -m infra.contract.contract_worker REQUEST ANSWER` by `infra.child`. A raw file may fill the memory or
end its parser, and logs, warnings and errors of Great Expectations, pandas and Arrow may quote a value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa

from data_contracts.arrow_rows import ParquetFiles, Read, no_files
from data_contracts.contract.engine import check, check_and_set_aside
from data_contracts.contract.findings import Judged, Outcome
from data_contracts.contract.great_expectations_engine import Classes, load_great_expectations
from data_contracts.contract.scan import Resources
from data_contracts.errors import UsageError
from data_contracts.handoffs import Suite
from data_contracts.messages.children import Advanced
from data_contracts.messages.raw_data import CONTRACT, ContractOutcome, ContractRequest
from infra import scratch
from infra.cluster_tasks import Cluster
from infra.contract.file_statistics import KnownStatistics, memory_bytes, profiled
from infra.contract.quarantine import FILE, with_places, write_quarantine
from infra.machine import num_cores
from infra.processes.child_main import Report, child_main
from infra.sources import Selection, Window, parquet_in_place, read_batches

_FIRST_ROWS = 1024
Load = Callable[[], Classes]


def main(request: ContractRequest, report: Report, load: Load = load_great_expectations) -> ContractOutcome:
    """The outcome of a check; `load` imports Great Expectations and gives the user's own classes that the suite names.

    Reports what it has done (`Advanced`), and with `cluster` each `ClusterTaskOrder`.

    Raises:
        UsageError: the data cannot be read, or lacks a column that `sensitive` names.
        SpecError: an argument of an expectation has a value that Great Expectations refuses.
    """
    files, sources, root = request.files, request.sources, Path(request.root)
    window = None if request.window is None else Window.from_iso(*request.window)
    every = Selection(window=window, window_column=request.window_column, strict=request.strict)

    steps = count(1)

    def moved() -> None:
        """Report one more step; between two batches, an expectation on whole columns may take long."""
        report(Advanced(done=next(steps), long=True))

    parts = _parts(request, report, moved)

    def read(columns: list[str] | None) -> Iterable[pa.RecordBatch]:
        # Of all columns, only a first batch is read, to see their types.
        wanted = replace(every, batch_rows=_FIRST_ROWS) if columns is None else replace(every, columns=columns)
        for batch in read_batches(files, sources, root=root, selection=wanted):
            moved()
            yield batch

    if request.sensitive and not request.may_lack_sensitive:
        # Before the window is used, whose column may be missing for the same reason.
        _refuse_unknown(request.sensitive, next(read_batches(files, sources, root=root), None))

    def opened() -> contextlib.AbstractContextManager[ParquetFiles | None]:
        by_column = window is not None and request.window_column is not None
        return contextlib.nullcontext() if by_column else parquet_in_place(files, sources, root)

    with scratch.make("contract") as spills:
        resources = Resources(spills.path, memory_bytes(), num_cores(), moved)
        if parts is not None:
            resources = replace(resources, answer=partial(parts.answer, resources))

        def judge(suite: Suite, rows: Read) -> Outcome:
            in_place = opened if rows is read else no_files  # what is left of the rows is in no file
            at, masked = request.fail_on, request.sensitive
            return check(suite, rows, fail_on=at, sensitive=masked, resources=resources, load=load, files=in_place)

        judged = _judged(request, read, judge, load)
        profile = None if parts is None else parts.profile()
    if profile is None and request.profile:
        profile = profiled(files, sources, root, selection=every, sensitive=request.sensitive, on_batch=moved)
    outcome = judged.outcome
    found = ContractOutcome(
        **{name: getattr(outcome, name) for name in ("accepted", "rows", "expectations", "failures")},
        quarantine=judged.quarantine,
        profile=profile,
    )
    return with_places(request, found)


def _parts(request: ContractRequest, report: Report, moved: Callable[[], None]) -> KnownStatistics | None:
    if request.statistics is None:
        return None
    shared = request.cluster
    cluster = None if shared is None else Cluster(Path(shared.folder), shared.at_once, report, on_wait=moved)
    parts = KnownStatistics(request, Path(request.statistics), cluster)
    parts.remember_facts()
    return parts


def _judged(request: ContractRequest, read: Read, judge: Callable[[Suite, Read], Outcome], load: Load) -> Judged:
    """The outcome; with `quarantine`, the rows that were set aside are written to `folder`."""
    if request.quarantine is None:
        return Judged(judge(request.suite, read))
    judged = check_and_set_aside(
        request.suite,
        read,
        judge,
        max_share=request.quarantine.max_share,
        fail_on=request.fail_on,
        sensitive=request.sensitive,
        load=load,
    )
    if len(judged.rows):
        assert request.folder is not None
        write_quarantine(Path(request.folder) / FILE, request, judged)
    return judged


def _refuse_unknown(sensitive: list[str], batch: pa.RecordBatch | None) -> None:
    """UsageError for sensitive columns that do not exist: a misspelt name would protect nothing."""
    there = {*sensitive} if batch is None else {*batch.schema.names}
    unknown = [name for name in sensitive if name not in there]
    if unknown:
        # Existing columns are not listed: without a header, their names would be the values of the first row.
        raise UsageError(
            f"data.sensitive: the data has no column {', '.join(unknown)}.",
            remedy="Correct the name, or leave it out; for a CSV file without a header, give data.source.columns.",
        )


if __name__ == "__main__":
    child_main(CONTRACT, main)
