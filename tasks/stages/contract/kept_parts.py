"""What checks of the same suite found in each raw file, kept in the store, so that only new files are read.

One sealed directory per run that found something new, under one key for suite and settings.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from data_contracts.canonical import reuse_key
from data_contracts.contract.parts import cut
from data_contracts.contract.suites import suite_digest
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Ref
from data_contracts.messages.raw_data import ContractRequest
from infra import scratch
from infra.contract.parts import KNOWN, NEW, part_names
from infra.store import Manifest, Store
from infra.store.seal import Writer
from infra.store.store import newest_sealed, seal_attempt
from tasks.run.run import Run
from tasks.stages.contract.raw_rows import reading_settings

# Raised when a measure or a profile changes its meaning.
PARTS_VERSION = 1
AREA = "contracts"
# For smaller files, a part would cost more than reading them again.
LEAST_BYTES = 2**20
# A check looks through this many directories. If the last of them has parts in use, all parts in use are
# sealed again together with the new parts.
MOST_PARTS = 8

log = logging.getLogger("trainwright")


@contextlib.contextmanager
def kept_parts(run: Run, request: ContractRequest) -> Iterator[ContractRequest]:
    """The request with a folder of the known parts; on leaving without an error, new parts are sealed."""
    if not worth_it(request):
        yield request
        return
    with scratch.make("parts") as folder:
        for name in (KNOWN, NEW):
            (folder.path / name).mkdir(mode=0o700)
        key = parts_key(request)
        sealed = _KeptDirectories(run.store, key, request)
        sealed.fetch(folder.path / KNOWN)
        yield request.model_copy(update={"parts": str(folder.path)})
        _seal(run, key, folder.path, sealed)


def worth_it(request: ContractRequest) -> bool:
    """Whether parts are kept: of several files of rows that are read whole, without rows that are set aside."""
    return not why_no_parts(request)


def why_no_parts(request: ContractRequest) -> str:
    """Why the files of a request are not measured one by one; "" if they are."""
    if request.window is not None and request.window_column is not None:
        return "data.window has a column"
    if request.quarantine is not None:
        return "contract.quarantine compares all rows"
    if len(request.files) < 2:
        return "there is one file"
    if any(file.format == "files" for file in request.files):
        return "the files are single rows (format: files)"
    if sum(file.bytes for file in request.files) < LEAST_BYTES * len(request.files):
        return f"the files have less than {LEAST_BYTES / 2**20:g} MiB on average"
    return "" if request.profile else "no profile is made of them"


def parts_key(request: ContractRequest) -> str:
    """The key of what is kept: the suite, what is masked and how files are read."""
    settings = {
        "suite": suite_digest(request.suite),
        "sensitive": sorted(request.sensitive),
        "sources": reading_settings(request.sources),
    }
    return reuse_key("validate-parts", PARTS_VERSION, settings, [], None)


class _KeptDirectories:
    """The newest sealed directories of parts under a key, and which of them have what a request needs."""

    def __init__(self, store: Store, key: str, request: ContractRequest) -> None:
        self._store, names = store, part_names(request)
        self._groups = {name: [names[at] for at in positions] for positions, name in cut(names) if name is not None}
        self._names = set(names)
        self._having: dict[str, list[Manifest]] = {}
        self._last_used = 0
        wanted = self._names | self._groups.keys()
        for looked, manifest in enumerate(newest_sealed(store, AREA, key, MOST_PARTS), 1):
            having = wanted.intersection(manifest.file_at)
            if having - self._having.keys():
                self._last_used = looked
            for name in having:
                self._having.setdefault(name, []).append(manifest)

    def fetch(self, folder: Path) -> None:
        """Copy the groups of the request's files, and the parts of files that are in none of them."""
        fetched = self._copy(self._groups, folder)
        self._copy(self._names.difference(*(self._groups[name] for name in fetched)), folder)

    def older(self, folder: Path, new: Collection[str]) -> list[Path]:
        """Copies of all other parts in use, if some of them are where the next check would no longer look."""
        if self._last_used < MOST_PARTS:
            return []
        rest = self._having.keys() - new
        self._copy([name for name in rest if not (folder / name).exists()], folder)
        return [folder / name for name in sorted(rest) if (folder / name).exists()]

    def _copy(self, names: Iterable[str], folder: Path) -> list[str]:
        """Copy the readable parts; those that are damaged, gone, or another user's alone are measured again."""
        copied = []
        for name in sorted(names):
            for manifest in self._having.get(name, []):
                with contextlib.suppress(FileNotFoundError, CorruptError, UsageError):
                    (folder / name).write_bytes(self._store.read_sealed(manifest, name))
                    copied.append(name)
                    break
        return copied


def _seal(run: Run, key: str, folder: Path, kept: _KeptDirectories) -> None:
    new = sorted((folder / NEW).iterdir())
    if not new:
        return
    older = kept.older(folder / KNOWN, {path.name for path in new})

    def fill(writer: Writer) -> Ref:
        for path in [*new, *older]:
            writer.put(path.name, path, private=True)
        return writer.seal("contract_parts", {"key": key, "version": PARTS_VERSION}, run.provenance())

    try:
        seal_attempt(run.store, AREA, key, fill)
    except CorruptError as error:
        log.warning(
            "validate: what was found in %d new files is not kept; a later run reads them again: %s", len(new), error
        )
