"""`report`: the page of a run as one HTML file, which opens offline.

The page is always made again: a writer of the store may have changed the page there, and a browser would follow it.
"""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

from data_contracts.errors import CorruptError, UsageError
from flows.commands.guard import Answer
from infra.files import replace_bytes
from infra.settings import state_folder
from infra.store.seal import noting_damage
from infra.written_files import record_written
from tasks.pages.facts import facts_of
from tasks.pages.run_page import UNFINISHED, run_report_page
from tasks.run.report import latest_report
from tasks.run.run import reopen_run


def report(arguments: argparse.Namespace) -> Answer:
    """Write the page; open it if asked."""
    out = None if arguments.out is None else free_file(arguments.out)
    run = reopen_run(arguments.run, arguments.store)
    ended = latest_report(run.store, run.run_id)
    with noting_damage() as damage:
        page = run_report_page(facts_of(run))
    path = write_page(page.encode(), out, run.run_id)
    if arguments.open:
        open_in_browser(path)
    verdict = ended.verdict if ended is not None else UNFINISHED
    value = {"run_id": run.run_id, "verdict": verdict, "page": str(path), "opened": arguments.open}
    text = f"{path} shows run {run.run_id}: {verdict}."
    if damage:
        return Answer(f"{text} It lacks what is damaged.\n{damage[0]}", value, CorruptError.exit_code, damage[0])
    return Answer(text, value)


def free_file(name: str) -> Path:
    """The file of `--out`; UsageError if it exists."""
    path = Path(name)
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} exists already.", remedy="Name another file with --out.")
    return path


def write_page(page: bytes, out: Path | None, name: str) -> Path:
    """Write a page to `out`; without one, to a file in the state folder that only this user can read."""
    path = out or state_folder() / "pages" / f"{name}.html"
    try:
        if out is not None:
            with path.open("xb") as file:
                file.write(page)
            record_written(path)
            return path
        path.parent.mkdir(exist_ok=True)
        replace_bytes(path, page, mode=0o600)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}.", remedy="Name a file in a folder of yours with --out."
        ) from error
    return path


def open_in_browser(path: Path) -> None:
    """Open a page; UsageError if this machine has no browser that can be started from here."""
    try:
        opened = webbrowser.open(path.resolve().as_uri())
    except (OSError, webbrowser.Error):
        opened = False
    if not opened:
        raise UsageError(
            f"There is no browser here to open {path} in.", remedy="Open the file on a machine that has one."
        )
