"""The child process that counts the rows of raw files that belong to an earlier window: `contract.arrival`.

Run as `python -m infra.contract.late_worker REQUEST ANSWER` by `infra.child`.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pyarrow.compute as pc

from data_contracts.arrow_rows import microseconds
from data_contracts.messages.children import Advanced
from data_contracts.messages.raw_data import LATE, LateRequest, LateRows
from infra.processes.child_main import Report, child_main
from infra.sources import Selection, read_batches


def main(request: LateRequest, report: Report) -> LateRows:
    """The counts that a request asks for; reports what it has read (`Advanced`)."""
    rows = late = 0
    select, done = Selection(columns=[request.column]), count(1)
    for batch in read_batches(request.files, request.sources, root=Path(request.root), selection=select):
        rows += batch.num_rows
        late += pc.sum(pc.less(microseconds(batch.column(0)), request.begins)).as_py() or 0
        report(Advanced(done=next(done)))
    return LateRows(rows=rows, late=late)


if __name__ == "__main__":
    child_main(LATE, main)
