"""`reproduce`: makes a model again from what is sealed, and compares every id on the way."""

from __future__ import annotations

import argparse
from pathlib import Path

from data_contracts.errors import CorruptError
from flows.commands.guard import Answer
from flows.commands.queries import store_with
from flows.commands.tables import table
from infra.sources.named_places import NamedPlaces
from tasks.reproduction.reproduce import Comparison, Reproduction, Request
from tasks.reproduction.reproduce import reproduce as make_again

# Of an id, for a person.
SHOWN = 16


def reproduce(arguments: argparse.Namespace) -> Answer:
    """The `reproduce` command."""
    folders = {name: _folder(getattr(arguments, name)) for name in ("into", "wheels")}
    places = NamedPlaces.of(arguments.data)
    found = make_again(store_with(arguments), Request(arguments.name, places=places, here=arguments.here, **folders))
    lines = [*_table(found.comparison), "", *(f"note: {note}" for note in found.notes), _verdict(found)]
    code = 0 if found.comparison.equal else CorruptError.exit_code
    return Answer("\n".join(lines), found.to_json(), code, line=lines[-1])


def _folder(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _table(comparison: Comparison) -> list[str]:
    rows = [
        (row.what, row.recorded[:SHOWN], row.made[:SHOWN] or "none", "equal" if row.equal else "differs")
        for row in comparison.rows
    ]
    return [table(("what", "recorded", "made", ""), rows)]


def _verdict(found: Reproduction) -> str:
    comparison, begin = found.comparison, f"{found.version} was made again in {found.folder}"
    if comparison.equal:
        return f"reproduced: {begin}, and every id is equal."
    if comparison.weights is None:
        what = f": {', '.join(comparison.parts)}" if comparison.parts else ""
        same = "; the weights are equal to the bit" if comparison.weights_equal else ""
        return f"differs: {begin}, but not every id is equal{same}{what}."
    difference = comparison.weights
    if difference.sentence:
        how = difference.sentence
    else:
        figures = [("absolute", difference.largest), ("relative", difference.relative)]
        by = " and ".join(f"{value:.3g} ({name})" for name, value in figures if value is not None) or "no finite number"
        how = f"{difference.values:,} of {difference.of_values:,} values differ, by at most {by}"
    return (
        f"differs: {begin}; the first kept checkpoint with other weights is that of step {comparison.step:,}, and the "
        f"first tensor of it is {difference.tensor} ({difference.tensors} of {difference.of} differ): {how}."
    )
