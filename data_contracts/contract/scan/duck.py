"""Runs DuckDB's queries in a thread of their own, where DuckDB may use only its inputs.

These are Arrow batches, open Parquet files, and a private folder to spill to: no other file, no extension, no Python
variable. DuckDB's own texts are never shown, because they may quote a value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from data_contracts.contract.parts import Settle

if TYPE_CHECKING:
    import duckdb

T = TypeVar("T")
_LOOK_S = 1.0


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Resources:
    """What a scan may use.

    Attributes:
        folder: an existing private folder for what does not fit into memory.
        memory_bytes: the memory that DuckDB may use before it spills.
        threads: its threads.
        moved: called about once a second while a query makes progress.
        settle: says which expectations hold by the kept findings of earlier checks of the same files.
    """

    folder: Path
    memory_bytes: int
    threads: int
    moved: Callable[[], None] = _nothing
    settle: Settle | None = None


def asked(
    work: Callable[[duckdb.DuckDBPyConnection], T],
    resources: Resources,
    *,
    paths: Sequence[str] = (),
    stop: Callable[[], None] = _nothing,
) -> T:
    """What `work` returns, given a connection to an empty database in memory; raises what it raises.

    It runs in a thread, because a signal's handler waits for the main thread to run Python. After a signal, the thread
    ends by itself; only it may close its connection, which is busy until then.

    Args:
        paths: the only files that the connection may open.
        stop: called if nobody waits for the answer any more.
    """
    connections: list[duckdb.DuckDBPyConnection] = []

    def query() -> T:
        with connected(resources, paths) as connection:
            connections.append(connection)
            return work(connection)

    thread = ThreadPoolExecutor(1, "scan")
    answer = thread.submit(query)
    try:
        return _waited(answer, connections, resources.moved)
    except BaseException:
        stop()
        if not answer.done():
            for connection in connections:
                connection.interrupt()
        raise
    finally:
        thread.shutdown(wait=False)


def _waited(answer: Future[T], connections: Sequence[duckdb.DuckDBPyConnection], moved: Callable[[], None]) -> T:
    before = -1.0
    while True:
        try:
            return answer.result(timeout=_LOOK_S)
        except NotYet:
            if answer.done():  # then the work itself raised it
                raise
            share = _share(connections)
            if share != before:
                moved()
            before = share


def _share(connections: Sequence[duckdb.DuckDBPyConnection]) -> float:
    """How far its query is, in percent; -1 if it has none."""
    import duckdb

    try:
        return connections[0].query_progress() if connections else -1.0
    except duckdb.Error:  # it was closed just now
        return -1.0


def connected(resources: Resources, paths: Sequence[str] = ()) -> duckdb.DuckDBPyConnection:
    """A connection to an empty database in memory, which reaches no file but these, and whose settings are locked."""
    import duckdb

    connection = duckdb.connect(":memory:", config=_config(resources))
    if paths:
        listed = ", ".join(f"'{path}'" for path in paths)
        assert listed.count("'") == 2 * len(paths)
        connection.execute(f"SET allowed_paths = [{listed}]")
    # A minimum or a number of nulls in a footer is what the writer claimed, not what the pages hold. A filter that is
    # pushed down would use them, or be Arrow's; and rows that no condition can keep would not be read, nor counted.
    connection.execute("SET disabled_optimizers = 'statistics_propagation,filter_pushdown'")
    connection.execute("SET enable_progress_bar = true")  # it is computed, not printed
    connection.execute("SET enable_progress_bar_print = false")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _config(resources: Resources) -> dict[str, str | bool | int | float | list[str]]:
    return {
        "allow_community_extensions": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "memory_limit": f"{resources.memory_bytes}B",
        "preserve_insertion_order": "false",
        "python_enable_replacements": "false",
        "temp_directory": str(resources.folder),
        "threads": str(resources.threads),
    }
