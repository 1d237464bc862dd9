"""The child process of `contract infer`: drafts a suite from raw files, which may fill the memory or end their parser.

Run as `python -m infra.contract.draft_worker REQUEST ANSWER` by `infra.child`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from data_contracts.contract.inference import draft, look
from data_contracts.handoffs import SourceFile
from data_contracts.messages.raw_data import DRAFT, Drafted, LookRequest
from data_contracts.pipeline_spec import CsvSpec, SourceSpec
from data_contracts.pipeline_spec.data import share_csv
from infra.processes.child_main import Report, child_main
from infra.sources import Places, file_facts, read_batches
from infra.sources.resolve import CSV
from infra.sources.schema_sniff import beginning
from infra.sources.tables import CsvFile, guess_csv


def main(request: LookRequest, report: Report) -> Drafted:
    """The draft for the files' rows; of no rows, one without expectations. UsageError as in `read_batches`."""
    files, sources, root = request.files, list(request.sources), Path(request.root)
    csv = _written(files, sources, root)
    if csv is not None:
        share_csv(sources, csv)
    columns = look(read_batches(files, sources, root=root))
    if not columns:
        return Drafted(csv=csv)
    text_from: dict[str, tuple[str, int]] = {}
    for file in files:
        for name, row in file_facts(file, sources, root).text_from.items():
            text_from.setdefault(name, (file.uri, row))
    return Drafted(**asdict(draft(columns)), text_from=text_from, csv=csv)


def _written(files: list[SourceFile], sources: list[SourceSpec], root: Path) -> CsvSpec | None:
    """How the first CSV file is written, if its source does not say so; None if as most are."""
    file = next((one for one in files if one.format in CSV and sources[one.source].csv is None), None)
    if file is None:
        return None
    written = guess_csv(beginning(file, Places(sources, root)), CsvFile.of(file, sources))
    return None if written == CsvSpec() else written


if __name__ == "__main__":
    child_main(DRAFT, main)
