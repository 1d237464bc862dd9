"""The child process that compares the rows of splits, mixtures and evaluation sets, and seals what it found.

Run as `python -m training.contamination.worker REQUEST ANSWER` by `infra.child`; the answer is a `ContaminationReport`.
"""

from __future__ import annotations

import numpy as np

from data_contracts.handoffs import Ref
from data_contracts.messages.raw_data import (
    CONTAMINATION,
    Conflicts,
    ContaminationReport,
    ContaminationRequest,
    Overlap,
)
from data_contracts.quoting import column_shown
from infra import scratch
from infra.processes.child_main import Report, advances, child_main
from infra.records.handoffs import local_dataset, put_handoff
from infra.store import Store, Writer, open_at
from infra.store.store import seal_from
from training.contamination.exact import (
    Compared,
    Masks,
    Shared,
    copies,
    find_shared,
    open_sides,
    record,
    rows_dropped,
    shared_without,
    write_without,
)
from training.contamination.near import Near, find_near

REPORT_S = 1.0


def main(request: ContaminationRequest, report: Report) -> ContaminationReport:
    """Compare the rows, drop copies if the request says so, and seal the report.

    Raises:
        UsageError: columns cannot be compared, or a split would have no rows left.
        CorruptError: a shard is not what was sealed.
    """
    store, section = open_at(request.store), request.section
    folders = [local_dataset(store, side.dataset) for side in request.sides]
    compared = open_sides(request.sides, folders, request.fields, advances(report, REPORT_S))
    with scratch.make("contamination") as folder:
        noted = record(compared, request.columns, request.label, folder.path)
        shared = find_shared(compared, noted, folder.path)
        near = find_near(compared, section.near, folder.path) if section.near else None
        overlaps = shared.overlaps(compared.sides) + (near.overlaps() if near else [])
        conflicts = shared.of_labels(compared.sides) if request.label else None
        (folder.path / "without").mkdir()
        more = shared_without(compared, request.columns, request.label, shared, folder.path / "without")
        hidden = [] if more is None else more[1].overlaps(compared.sides)
        masks = _masks(compared, request, shared, near) if section.on_found == "drop" else {}
        dropped = rows_dropped(compared, masks)
        dataset: Ref | None = None
        if dropped:
            of_new = {"key": request.key, "provenance": request.provenance}

            def fill(writer: Writer) -> Ref:
                return write_without(writer, request.dataset, compared, masks, of_new, folder.path)

            dataset = seal_from(store, request.dataset_uri, fill)
    foreign = {side.name for side in request.sides if not side.own}
    rejected = _rejected(overlaps, conflicts, request, foreign)
    numbered = "" if more is None else _numbered(more[0], hidden, bool(overlaps))
    found = ContaminationReport(
        key=request.key,
        accepted=not rejected,
        columns=request.columns,
        label=request.label,
        rows={one.side.name: one.num_rows for one in compared.sides},
        overlaps=overlaps,
        conflicts=conflicts,
        dropped=dropped,
        dataset=dataset,
        sentence="; ".join(filter(None, (sentence(overlaps, conflicts, dropped), numbered))),
    )
    return _sealed(store, request, found)


def _masks(compared: Compared, request: ContaminationRequest, shared: Shared, near: Near | None) -> Masks:
    """The rows to drop, by side."""
    masks = {}
    for side in compared.sides:
        if side.side.own:
            mask = copies(compared, side, request.columns, shared.to_drop.get(side.number))
            masks[side.number] = mask if near is None else np.logical_or(mask, near.mask(side.number))
    return masks


def _rejected(
    overlaps: list[Overlap], conflicts: Conflicts | None, request: ContaminationRequest, foreign: set[str]
) -> bool:
    """Whether what was found rejects the dataset; rows of another pipeline's dataset cannot be dropped."""
    section = request.section
    if conflicts is not None and conflicts.groups and section.on_conflict == "reject":
        return True
    if section.on_found == "drop":
        return any(one.earlier in foreign for one in overlaps)
    return bool(overlaps) and section.on_found == "reject"


def sentence(overlaps: list[Overlap], conflicts: Conflicts | None, dropped: dict[str, int]) -> str:
    """What was found, with the first rows; "" for nothing."""
    parts = []
    for one in overlaps:
        later, earlier = one.examples[0]
        kind = "nearly " if one.kind == "near" else ""
        differ = f", {one.conflicting:,} with another label" if one.conflicting else ""
        parts.append(
            f"{one.later_rows:,} row{_s(one.later_rows)} of {one.later} {'are' if one.later_rows > 1 else 'is'} {kind}"
            f"also in {one.earlier}{differ} (row {later.row} of {later.shard} is row {earlier.row} of {earlier.shard})"
        )
    if conflicts is not None and conflicts.groups:
        first, second = conflicts.examples[0]
        parts.append(
            f"{conflicts.rows:,} rows share their columns with a row of another label (row {first.row} of "
            f"{first.shard}, row {second.row} of {second.shard})"
        )
    left = ", ".join(f"{rows:,} row{_s(rows)} of {name}" for name, rows in dropped.items())
    return "; ".join([*parts, *([f"left out: {left}"] if left else [])])


def _numbered(columns: list[str], overlaps: list[Overlap], shared: bool) -> str:
    """What is in two sides but for columns that number the rows."""
    names, plural = ", ".join(column_shown(repr(name)) for name in columns), "s" if len(columns) > 1 else ""
    return (
        f"{'' if shared else 'no row is in two splits, but '}each row has its own value in the column{plural} {names}; "
        f"without {'them' if plural else 'it'} (contract.contamination.ignore), {sentence(overlaps, None, {})}"
    )


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _sealed(store: Store, request: ContaminationRequest, report: ContaminationReport) -> ContaminationReport:
    settings = {
        "asked": request.section.model_dump(mode="json"),
        "sides": [[side.name, side.dataset.ref.id, side.split, side.use] for side in request.sides],
    }

    def fill(writer: Writer) -> Ref:
        entry = put_handoff(writer, report.model_dump(mode="json", exclude={"ref"}))
        return writer.seal("contract", settings, request.provenance, [entry])

    return report.model_copy(update={"ref": seal_from(store, request.uri, fill)})


if __name__ == "__main__":
    child_main(CONTAMINATION, main)
