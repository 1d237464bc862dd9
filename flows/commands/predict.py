"""`predict`: a model's predictions for the rows of files."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator

from data_contracts.errors import UsageError
from data_contracts.messages.raw_data import ShardProgress
from flows.commands.guard import Answer
from flows.commands.queries import store_with
from flows.commands.terminal import draws
from tasks.predict import PredictOptions, PredictSummary
from tasks.predict import predict as predict_rows
from tasks.run.progress import sentence

_CLEAR = "\r\x1b[2K"


def predict(arguments: argparse.Namespace) -> Answer:
    """The `predict` command."""
    if arguments.batch_size is not None and arguments.batch_size < 1:
        raise UsageError("--batch-size must be at least 1.", remedy="Give a number of rows.")
    options = PredictOptions(
        model=arguments.name,
        input=arguments.input,
        output=arguments.output,
        keep=_names(arguments.keep),
        label=_names(arguments.label),
        batch_size=arguments.batch_size,
        contract=arguments.contract,
        overwrite=arguments.overwrite,
    )
    with _line(quiet=arguments.quiet or arguments.json) as show:
        summary = predict_rows(store_with(arguments), options, show)
    found = summary.predicted
    value = {
        "model": summary.name,
        "version": summary.version,
        "output": options.output,
        "expectations": summary.expectations,
        "not_checked": summary.not_checked,
        **{key: one for key, one in found.to_json().items() if key != "schema_version"},
    }
    lines = _in_words(summary, options.output)
    return Answer("\n".join(lines), value, line=lines[0])


def _in_words(summary: PredictSummary, output: str) -> list[str]:
    found = summary.predicted
    plural = "" if found.rows == 1 else "s"
    lines = [
        f"{summary.name} version {summary.version} predicted {found.rows:,} row{plural}: {output}",
        f"  columns     {', '.join(found.columns)}",
    ]
    if found.resumed_rows:
        lines.append(f"  continued   {found.resumed_rows:,} rows were predicted before the interruption")
    if found.begun_anew:
        lines.append(f"  begun anew  {found.begun_anew} differed from the interrupted attempt")
    if found.no_label:
        lines.append(f"  no label    the input has no {', '.join(found.no_label)}, and needs none")
    if found.left_out:
        lines.append(f"  left out    {', '.join(found.left_out)}: no value for each row")
    if summary.expectations:
        lines.append(f"  contract    the rows meet {summary.expectations} expectations")
    lines += [f"  not checked {one.rstrip('.')} (the input has no such column)" for one in summary.not_checked]
    return lines


def _names(text: str | None) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))


@contextlib.contextmanager
def _line(*, quiet: bool) -> Iterator[Callable[[ShardProgress], None]]:
    """Shows progress in one line of the terminal, and removes it at the end."""
    if quiet or not draws(sys.stderr):
        yield lambda progress: None
        return

    def show(progress: ShardProgress) -> None:
        sys.stderr.write(f"{_CLEAR}{sentence(progress)}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write(_CLEAR)
        sys.stderr.flush()
