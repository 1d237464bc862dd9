"""`predict`, `export`, `reproduce`, `mirror`: use and prove models.

`predict` writes a model's predictions for the rows of files. `export` writes a model version to a folder, in a form
that runs without Trainwright. `reproduce` makes a model again from what is sealed, and compares every id on the way.
`mirror` sends the mirrors what they do not have yet.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from data_contracts.errors import CorruptError, StorageUnavailable, UsageError
from data_contracts.messages.commands import Tolerance
from data_contracts.messages.raw_data import ShardProgress
from flows.commands.decisions import store_with
from flows.commands.guard import Answer
from flows.commands.terminal import draws, table
from flows.features import is_present
from infra.mirrors import PREFECT, Deadline
from infra.sources.named_places import NamedPlaces
from tasks.run.progress import sentence
from tasks.run.run import known_store_list, reopen_run

if is_present("export"):
    from tasks.export import Export
    from tasks.export import export as export_model
if is_present("mirrors"):
    from tasks.mirrors.deliver import Due, accept_places, due, due_of_run, tell
if is_present("predict"):
    from tasks.predict import PredictOptions, PredictSummary
    from tasks.predict import predict as predict_rows
if is_present("reproduction"):
    from tasks.reproduction.reproduce import Reproduction, Request
    from tasks.reproduction.reproduce import reproduce as make_again

_CLEAR = "\r\x1b[2K"
_LICENSE = re.compile(r"([a-z0-9][a-z0-9.+-]{0,62})?")
# Of an id, for a person.
SHOWN = 16


def predict(arguments: argparse.Namespace) -> Answer:
    """The `predict` command."""
    if arguments.batch_size is not None and arguments.batch_size < 1:
        raise UsageError("--batch-size must be at least 1.", remedy="Give a number of rows.")
    options = PredictOptions(
        model=arguments.name,
        input=arguments.input,
        output=arguments.output,
        keep=_column_names(arguments.keep),
        label=_column_names(arguments.label),
        batch_size=arguments.batch_size,
        overwrite=arguments.overwrite,
    )
    with _progress_line(quiet=arguments.quiet or arguments.json) as show:
        summary = predict_rows(store_with(arguments), options, show)
    value = {
        "model": summary.name,
        "version": summary.version,
        "output": options.output,
        **{key: one for key, one in summary.predicted.to_json().items() if key != "schema_version"},
    }
    lines = _summary_in_words(summary, options.output)
    return Answer("\n".join(lines), value, line=lines[0])


def _summary_in_words(summary: PredictSummary, output: str) -> list[str]:
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
    return lines


def _column_names(text: str | None) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))


@contextlib.contextmanager
def _progress_line(*, quiet: bool) -> Iterator[Callable[[ShardProgress], None]]:
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


def export(arguments: argparse.Namespace) -> Answer:
    """The `export` command."""
    tolerance = _tolerance(arguments.atol, arguments.rtol)
    if not _LICENSE.fullmatch(arguments.license):
        raise UsageError(
            "--license is not the id of a licence.",
            remedy="Use a model hub's name for it, such as apache-2.0 or other.",
        )
    made = export_model(
        store_with(arguments),
        arguments.name,
        arguments.to,
        Path(arguments.dir),
        tolerance,
        license_id=arguments.license,
    )
    return Answer("\n".join(_export_lines(made, arguments.to)), {"folder": str(made.folder.absolute()), **made.record})


def _tolerance(atol: float | None, rtol: float | None) -> Tolerance | None:
    if atol is None and rtol is None:
        return None
    values = {"--atol": atol or 0.0, "--rtol": rtol or 0.0}
    for option, value in values.items():
        if not 0 <= value < float("inf"):
            raise UsageError(f"{option} {value} is not a number from 0.", remedy="Give a small number such as 1e-4.")
    return Tolerance(atol=values["--atol"], rtol=values["--rtol"])


def _export_lines(made: Export, target: str) -> list[str]:
    exported = made.exported
    lines = [f"{made.facts.title}, exported to {made.folder} ({target})"]
    if exported.inputs:
        names = [one.name for one in exported.inputs]
        shown = names if len(names) <= 8 else [*names[:3], f"… ({len(names):,} in all)"]
        lines.append(f"  inputs   {', '.join(shown)}")
        lines.append(f"  outputs  {', '.join(one.name for one in exported.outputs)}")
        largest = max(one.largest for one in exported.agreements)
        lines.append(
            f"  compared with the checkpoint on {exported.sample:,} rows: the largest difference is {largest:.3g}"
        )
    if exported.transform is False:
        lines.append(f"  train.transform is not included: {exported.transform_fault}")
    return [*lines, f"  {made.folder / 'README.md'} is its page"]


def reproduce(arguments: argparse.Namespace) -> Answer:
    """The `reproduce` command."""
    request = Request(
        arguments.name,
        into=arguments.into,
        places=NamedPlaces.of(arguments.data),
        wheels=arguments.wheels,
        here=arguments.here,
    )
    found = make_again(store_with(arguments), request)
    rows = [
        (row.what, row.recorded[:SHOWN], row.made[:SHOWN] or "none", "equal" if row.equal else "differs")
        for row in found.comparison.rows
    ]
    lines = [
        table(("what", "recorded", "made", ""), rows),
        "",
        *(f"note: {note}" for note in found.notes),
        _verdict(found),
    ]
    return Answer(
        "\n".join(lines), found.to_json(), 0 if found.comparison.equal else CorruptError.exit_code, line=lines[-1]
    )


def _verdict(reproduction: Reproduction) -> str:
    comparison, begin = reproduction.comparison, f"{reproduction.version} was made again in {reproduction.folder}"
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


def mirror(arguments: argparse.Namespace) -> Answer:
    """The `mirror` command: of one run, which is told again, or of all runs and rollbacks of the known stores."""
    if not arguments.wait > 0:
        raise UsageError(f"--wait: {arguments.wait} is not a time.", remedy="Give a number of seconds above 0.")
    if arguments.accept and arguments.run is None:
        raise UsageError("--accept: a place is accepted for one run's mirrors.", remedy="Name the run.")
    deadline, told = Deadline(arguments.wait), list[Due]()
    if arguments.run is not None:
        run = reopen_run(arguments.run, arguments.store)
        if not run.spec.mirrors.names:
            raise UsageError(
                f"The spec of run {run.run_id} has no mirrors.", remedy="Add a section `mirrors` and run again."
            )
        of_run = due_of_run(run.store, run.resolved, again=True)
        if not of_run:
            raise UsageError(f"Run {run.run_id} has not ended.", remedy="Its mirrors are told when it ends.")
        accept_places(run, arguments.accept)
        left = tell(run.store, lambda: of_run, deadline, told.append)
    else:
        left = []
        for store in known_store_list(arguments.store):
            left += tell(store, partial(due, store), deadline, told.append)
    return _mirror_answer(told, left)


def _mirror_answer(delivered: Sequence[Due], left: Sequence[Due]) -> Answer:
    """What was sent to which mirror, and what is left and why."""
    done = [f"{update.mirror}: {update.last.sentence}" for update in delivered if update.last is not None]
    value = {"told": len(delivered), "done": done, "left": [update.sentence for update in left]}
    mirrors = [update for update in left if update.mirror != PREFECT]
    if not mirrors:
        # Nobody asked for a server, and none may ever run here: what waits for one is no failure.
        waits = [f"{update.sentence} The next run or `trainwright mirror` beside a server tells it." for update in left]
        return Answer("\n".join([*done, *waits]) or "Every mirror was told everything.", value)
    count = f"{len(left)} of {len(delivered) + len(left)}"
    error = StorageUnavailable(f"Mirrors were not told everything ({count} left): {mirrors[0].sentence}", remedy="")
    head = f"{count} left. The next run with mirrors in this store tells what is left, as does `trainwright mirror`."
    return Answer("\n".join([*done, head, *(f"  {update.sentence}" for update in left)]), value, 5, error)
