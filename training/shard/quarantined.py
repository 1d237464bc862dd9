"""Leaves the rows that the contract set aside out of their units, whichever process on whichever machine reads one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from data_contracts.arrow_rows import Numbers, among
from infra.contract.quarantine import LeftOut
from training.shard.source_units import Unit, of_documents


def without_quarantined(units: Sequence[Unit], left_out: LeftOut) -> list[Unit]:
    """The units of all files, in order, each with the rows that it leaves out."""
    found: list[Unit] = []
    files = first = 0  # files before the next one; rows of the current file before this unit
    for unit in units:
        if unit.files[0].format == "text":
            found += _documents(unit, [left_out.of(files + at) for at in range(len(unit.files))], len(found))
            files += len(unit.files)
            continue
        if len(unit.files) > 1 or unit.files[0].format == "files":
            rows = [at for at in range(len(unit.files)) if len(left_out.of(files + at))]
            found.append(_without(replace(unit, number=len(found)), np.array(rows, np.int64)))
            files += len(unit.files)
            continue
        if unit.row_groups is None or unit.row_groups[0] == 0:
            files, first = files + 1, 0
        gone = left_out.of(files - 1)
        unit = replace(unit, number=len(found))
        found.append(_without(unit, gone if unit.rows is None else among(gone, first, unit.rows)))
        first += unit.rows or 0
    return found


def _documents(unit: Unit, gone: list[Numbers], number: int) -> list[Unit]:
    """A unit of documents; of one document each, if a document leaves out rows: its rows are not counted before."""
    if not any(map(len, gone)):
        return [replace(unit, number=number)]
    apart = [of_documents([file], number + at)[0] for at, file in enumerate(unit.files)]
    return [_without(one, rows) for one, rows in zip(apart, gone, strict=True)]


def _without(unit: Unit, gone: Numbers) -> Unit:
    if not len(gone):
        return unit
    return replace(unit, left_out=gone, rows=None if unit.rows is None else unit.rows - len(gone))
