"""Checks by the spec whether a canary can get fresh rows at all."""

from __future__ import annotations

import re
from collections.abc import Sequence

from data_contracts.pipeline_spec import PipelineSpec, SourceSpec

# With one of these, the same address names other files in each run.
_MOVES = re.compile(r"[*?\[]|\{\{")


def why_no_fresh_rows(spec: PipelineSpec) -> str | None:
    """A sentence if each run scores the same rows, so that a canary stands until its window ends; None if not."""
    wanted = spec.promote.canary
    if wanted is None or isinstance(spec.data, str):
        return None
    name = wanted.metric.rpartition("/")[0]
    of_set = spec.evaluate.sets.get(name)
    split = spec.evaluate.split if of_set is None else of_set.split
    if of_set is not None and of_set.source is not None:
        field, sources, window = f"evaluate.sets.{name}.source", of_set.source, False
    else:
        field, sources, window = "data.source", spec.data.source, spec.data.window is not None
        if (end := _end_of(spec, split)) is not None:
            return (
                f"promote.canary: the split {split} ends at {end} (shards.split.boundaries), so later rows are never "
                "in it, and a canary gets no fresh rows; let its metric be of the last split."
            )
    if window or any(_MOVES.search(one.uri) for one in sources):
        return None
    return (
        f"promote.canary: {field} names {_files(sources)} and no window, so a canary gets fresh rows only if what is "
        "there changes; name a glob or a data.window that new rows come into."
    )


def _end_of(spec: PipelineSpec, split: str | None) -> str | None:
    """When the next split begins, if the splits have boundaries in time; None for the last one."""
    boundaries = {} if spec.shards is None else spec.shards.split.boundaries
    names = ["train", *boundaries]
    if not boundaries or split not in names or split == names[-1]:
        return None
    return boundaries[names[names.index(split) + 1]]


def _files(sources: Sequence[SourceSpec]) -> str:
    return "one file or folder" if len(sources) == 1 else f"{len(sources)} files or folders"
