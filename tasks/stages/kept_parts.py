"""What checks of the same suite found in each raw file, kept in the store, so that only new files are read.

One sealed directory per run that found something new, under one key for suite and settings.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from data_contracts.canonical import reuse_key
from data_contracts.contract.suites import suite_digest
from data_contracts.errors import CorruptError, UsageError
from data_contracts.messages.raw_data import ContractRequest
from infra import scratch
from infra.contract.contract_parts import KNOWN, NEW, part_name
from infra.store import Store, layout
from tasks.run.run import Run
from tasks.stages.raw_rows import reading_settings

# Raised when a measure or a profile changes its meaning.
VERSION = 1
AREA = "contracts"
# Of smaller files, a part would cost more than to read them.
LEAST_BYTES = 2**20
# Directories that are looked through; one that is written as the last of so many holds all parts in use.
MOST = 8
TRIES = 3

log = logging.getLogger("trainwright")


@contextlib.contextmanager
def kept_parts(run: Run, request: ContractRequest) -> Iterator[ContractRequest]:
    """The request with a folder of the parts that are known; on leaving without an error, new ones are sealed."""
    if not worth_it(request):
        yield request
        return
    with scratch.make("parts") as folder:
        for name in (KNOWN, NEW):
            (folder.path / name).mkdir(mode=0o700)
        key = parts_key(request)
        depth = _fetch(run.store, key, request, folder.path / KNOWN)
        yield request.model_copy(update={"parts": str(folder.path)})
        _seal(run, key, folder.path, everything=depth >= MOST)


def worth_it(request: ContractRequest) -> bool:
    """Whether parts are kept: of several files of rows that are read whole, without rows that are set aside."""
    by_column = request.window is not None and request.window_column is not None
    if by_column or request.quarantine is not None or not request.profile or len(request.files) < 2:
        return False
    if any(file.format == "files" for file in request.files):
        return False
    return sum(file.bytes for file in request.files) >= LEAST_BYTES * len(request.files)


def parts_key(request: ContractRequest) -> str:
    """The key of what is kept: the suite, what is masked and how files are read."""
    settings = {
        "suite": suite_digest(request.suite),
        "sensitive": sorted(request.sensitive),
        "sources": reading_settings(request.sources),
    }
    return reuse_key("validate-parts", VERSION, settings, [], None)


def _fetch(store: Store, key: str, request: ContractRequest, folder: Path) -> int:
    """Copy the known parts of the request's files; returns how many directories there are, up to MOST."""
    wanted = {part_name(file, request.sources[file.source]) for file in request.files}
    looked = 0
    for n in reversed(store.attempts(AREA, key)):
        uri = layout.attempt(AREA, key, n)
        if store.exists(layout.tombstone(uri)) or not store.claim(uri):
            continue
        # A part that is damaged, gone, or another user's alone is found out again.
        with contextlib.suppress(FileNotFoundError, CorruptError, UsageError):
            manifest = store.manifest(uri)
            for name in sorted(wanted.intersection(entry.path for entry in manifest.files)):
                (folder / name).write_bytes(store.read_sealed(manifest, name))
                wanted.discard(name)
        looked += 1
        if not wanted or looked == MOST:
            break
    return looked


def _seal(run: Run, key: str, folder: Path, *, everything: bool) -> None:
    new = sorted((folder / NEW).iterdir())
    if not new:
        return
    names = {path.name for path in new}
    older = [path for path in sorted((folder / KNOWN).iterdir()) if path.name not in names] if everything else []
    for _ in range(TRIES):
        # Another run that checks with this suite may seal the same attempt first.
        with contextlib.suppress(CorruptError):
            writer = run.store.writer(run.store.next_attempt(AREA, key), afresh=True)
            for path in [*new, *older]:
                writer.put(path.name, path, private=True)
            writer.seal("contract_parts", {"key": key, "version": VERSION}, run.provenance())
            return
    log.warning("validate: what was found in %d new files is not kept; a later run reads them again", len(new))
