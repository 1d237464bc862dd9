"""`status --html`: the page of a day as one HTML file, which opens offline."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from data_contracts.errors import UsageError
from flows.commands.guard import Answer
from infra.files import replace_bytes
from infra.sources.resolve import window_since
from infra.written_files import record_written
from tasks.pages.day_page import day_page, day_rows, is_day_page
from tasks.queries.day import day_of
from tasks.run.run import known_store_list
from tasks.slo import read_objectives

# Of a file that is there, as much as shows whether it is a page of a day.
_BEGINNING = 2048


def asks_for_page(arguments: argparse.Namespace) -> bool:
    """Whether `--html` is given; UsageError for what has no effect without it."""
    for name in ("since", "objectives"):
        if arguments.html is None and getattr(arguments, name) is not None:
            raise UsageError(f"--{name} has no effect without --html.", remedy="Name the page's file: --html day.html.")
    return arguments.html is not None


def day(arguments: argparse.Namespace) -> Answer:
    """Write the page; an earlier page of a day is replaced, another file is not."""
    path = Path(arguments.html)
    _refuse_other_file(path)
    if ".." in (arguments.since or ""):
        raise UsageError(
            "--since: a page of a day ends now, so it has no END.", remedy="Name its beginning: --since 7d."
        )
    since = None if arguments.since is None else window_since(arguments.since).start
    found = day_of(known_store_list(arguments.store), read_objectives(arguments.objectives), since)
    try:
        replace_bytes(path, day_page(found).encode())
        record_written(path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}.", remedy="Name a file in a folder of yours with --html."
        ) from error
    title, counted, rows = day_rows(found)
    needed = [{"kind": kind, "sentence": what, "command": command} for kind, what, command in rows]
    value: dict[str, Any] = {"page": str(path), "stores": [one.uri for one in found.stores], "needs": needed}
    lines = [f"{path} shows the day: {title}. {counted}", *(f"  {what} ({command})" for _, what, command in rows)]
    return Answer("\n".join(lines), value, line=lines[0])


def _refuse_other_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            known = not path.is_symlink() and is_day_page(file.read(_BEGINNING).decode(errors="replace"))
    except FileNotFoundError:
        known = not path.is_symlink()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}.", remedy="Name another file with --html."
        ) from error
    if not known:
        raise UsageError(f"{path} exists, and is not a page of a day.", remedy="Name another file with --html.")
