"""The child process that finds the columns of raw files, whose beginnings may fill the memory or end their parser.

Run as `python -m infra.sources.columns_worker REQUEST ANSWER` by `infra.child`.
"""

from __future__ import annotations

from pathlib import Path

from data_contracts.messages.raw_data import COLUMNS, ColumnNames, LookRequest
from infra.processes.child_main import Report, child_main
from infra.sources.peek import peek
from infra.sources.places import Places


def main(request: LookRequest, report: Report) -> ColumnNames:
    """The names of the columns that the files begin with; UsageError as in `peek`."""
    root = Path(request.root)
    places = Places(request.sources, root)
    found = (peek(file, request.sources, root, places).names for file in request.files)
    return ColumnNames(names=list(dict.fromkeys(name for names in found for name in names)))


if __name__ == "__main__":
    child_main(COLUMNS, main)
