"""How the raw rows became those of a dataset's splits, for the stage's line, its page in Prefect and the run's page."""

from __future__ import annotations

import contextlib
import math
from typing import Any

from data_contracts.handoffs import Dataset
from data_contracts.quoting import columns_shown
from infra.records.handoffs import LACKING, ROW_COUNTS
from infra.store import Store
from tasks.run.run import Run

# A split is warned about if its share is off by more than so many points of all rows or so large a part of what was
# asked, whichever is less, and by more than so many standard errors of a draw row by row. docs/shard.md states them.
MOST_POINTS, MOST_PART, MOST_ERRORS = 0.05, 0.2, 3.0
_CAUSES = {
    "window": "outside the window",
    "gap": "in a gap",
    "transform": "left out by shards.transform",
    "contamination": "copies of rows in other splits",
}


def in_order(dataset: Dataset) -> list[str]:
    """A dataset's splits in the usual order: train, val and test first, others by name."""
    usual = ("train", "val", "test")
    return sorted(dataset.splits, key=lambda name: (usual.index(name) if name in usual else len(usual), name))


def split_rows(run: Run, dataset: Dataset) -> dict[str, str]:
    """Each split's rows, their share, and the share that was asked, if one was."""
    asked, rows = _shares(run), {name: dataset.rows(name) for name in in_order(dataset)}
    every = max(1, sum(rows.values()))
    texts = {}
    for name, count in rows.items():
        wanted = f", asked {100 * asked[name]:.3g}%" if name in asked else ""
        texts[name] = f"{count:,} ({count / every:.1%}{wanted})"
    return texts


def rows_read(run: Run, dataset: Dataset) -> int | None:
    """The rows of the raw files; None for a dataset of an earlier version, which did not record it."""
    return _counts(run.store, dataset).get("read")


def rows_left_out(run: Run, dataset: Dataset) -> dict[str, int]:
    """The raw rows that are in no split, by cause in words, without causes that left out none."""
    counts = dataset.dropped_rows | _counts(run.store, dataset)
    return {_CAUSES.get(why, why): rows for why, rows in counts.items() if rows and why not in ("read", "added")}


def remarks(run: Run, dataset: Dataset) -> list[str]:
    """What a person should know about the rows: rows that were made, columns that files lack, unexpected shares."""
    found = []
    if added := _counts(run.store, dataset).get("added"):
        found.append(f"shards.transform made {added:,} rows more than it got")
    if lacking := _provenance(run.store, dataset).get(LACKING):
        names = columns_shown(lacking, run.withholds)
        found.append(f"some files lack columns, which are null in their rows: {names}")
    return found + warnings(run, dataset)


def warnings(run: Run, dataset: Dataset) -> list[str]:
    """Splits without rows, and splits whose share is off by more than chance explains; see docs/shard.md."""
    asked, every = _shares(run), sum(dataset.rows(name) for name in dataset.splits)
    assert run.spec.shards is not None
    key = run.spec.shards.split.key
    why = f", because rows with equal {key if isinstance(key, str) else ', '.join(key)} stay together" if key else ""
    found = []
    for name, share in asked.items():
        actual = dataset.rows(name) / max(1, every)
        error = math.sqrt(share * (1 - share) / max(1, every))
        if share and not actual:
            found.append(f"warning: {name} has no rows, but {100 * share:.3g}% were asked")
        elif abs(actual - share) > max(min(MOST_POINTS, MOST_PART * share), MOST_ERRORS * error):
            found.append(f"warning: {name} has {actual:.1%} of the rows, but {100 * share:.3g}% were asked{why}")
    return found


def _shares(run: Run) -> dict[str, float]:
    """The share of each split that the spec asks for; {} where a column or boundaries decide."""
    split = run.spec.shards.split if run.spec.shards is not None else None
    return {} if split is None or split.column is not None or split.boundaries else split.fractions


def _counts(store: Store, dataset: Dataset) -> dict[str, int]:
    return _provenance(store, dataset).get(ROW_COUNTS, {})


def _provenance(store: Store, dataset: Dataset) -> dict[str, Any]:
    """What is recorded of how a dataset was made; of one without copies also what is recorded of that with them."""
    with contextlib.suppress(FileNotFoundError):
        manifest = store.manifest(dataset.ref)
        whole = manifest.parent_in("datasets") if "without_copies_of" in manifest.settings else None
        return manifest.provenance if whole is None else {**store.manifest(whole).provenance, **manifest.provenance}
    return {}
