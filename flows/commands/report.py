"""`report`: the page of a run as one HTML file, which opens offline."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

from data_contracts.errors import TrainwrightError, UsageError
from data_contracts.run_report import RunReport
from flows.commands.guard import Answer, log
from infra.atomic import replace_bytes
from infra.settings import state_folder
from infra.store import Store
from tasks.pages.facts import facts_of
from tasks.pages.run_report_page import UNFINISHED, kept_page, page_path, run_report_page
from tasks.run.report import latest_report
from tasks.run.run import Run, reopen_run


def report(arguments: argparse.Namespace) -> Answer:
    """Write the page, or name the one in the store; open it if asked."""
    out = None if arguments.out is None else free_file(arguments.out)
    run = reopen_run(arguments.run, arguments.store)
    ended = latest_report(run.store, run.run_id)
    page, stored = _page(run, ended)
    path = write_page(page, out, stored, run.run_id)
    if arguments.open:
        open_in_browser(path)
    verdict = ended.verdict if ended is not None else UNFINISHED
    value = {"run_id": run.run_id, "verdict": verdict, "page": str(path), "opened": arguments.open}
    return Answer(f"{path} shows run {run.run_id}: {verdict}.", value)


def free_file(name: str) -> Path:
    """The file of `--out`; UsageError if it exists."""
    path = Path(name)
    if path.exists() or path.is_symlink():
        raise UsageError(f"{path} exists already.", remedy="Name another file with --out.")
    return path


def write_page(page: bytes, out: Path | None, stored: Path | None, name: str) -> Path:
    """Write a page to `out`; without one, the file in the store is used, or a file in the state folder."""
    path = out or stored
    if path is not None and path == stored:
        return path
    try:
        if path is not None:
            with path.open("xb") as file:
                file.write(page)
            return path
        path = state_folder() / "pages" / f"{name}.html"
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


def _page(run: Run, ended: RunReport | None) -> tuple[bytes, Path | None]:
    """The page of the run's newest report, made if the store has none; and its file, if the store is a folder.

    The page of a run that has not ended is not kept.
    """
    if ended is None:
        return run_report_page(facts_of(run)).encode(), None
    path = page_path(run, ended)
    page = kept_page(run.store, path)
    if page is None:
        page = run_report_page(facts_of(run)).encode()
        return page, _file(run.store, path) if _kept(run.store, path, page) else None
    return page, _file(run.store, path)


def _kept(store: Store, path: str, page: bytes) -> bool:
    try:
        return store.create_once(path, page)
    except (TrainwrightError, OSError) as error:  # a store that may only be read
        log.debug("the page is not kept: %s", error)
        return False


def _file(store: Store, path: str) -> Path | None:
    return Path(store.uri) / path if store.is_local else None
