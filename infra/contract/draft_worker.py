"""The child process of `contract infer`: drafts a suite from raw files, which may fill the memory or end their parser.

Run as `python -m infra.contract.draft_worker REQUEST ANSWER` by `infra.child`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from data_contracts.contract.inference import draft, look
from data_contracts.messages.raw_data import DRAFT, Drafted, LookRequest
from infra.processes.child_main import Report, child_main
from infra.sources import file_facts, read_batches


def main(request: LookRequest, report: Report) -> Drafted:
    """The draft for the files' rows; of no rows, one without expectations. UsageError as in `read_batches`."""
    files, sources, root = request.files, request.sources, Path(request.root)
    columns = look(read_batches(files, sources, root=root))
    if not columns:
        return Drafted()
    text_from: dict[str, tuple[str, int]] = {}
    for file in files:
        for name, row in file_facts(file, sources, root).text_from.items():
            text_from.setdefault(name, (file.uri, row))
    return Drafted(**asdict(draft(columns)), text_from=text_from)


if __name__ == "__main__":
    child_main(DRAFT, main)
