"""The scrub of a store: each day, all bytes of a part of the sealed directories are read again and compared.

A part is all directories whose name gives the same number, of which there are as many as days until everything was
read once. So nothing is remembered between two days. A scrub claims nothing and changes nothing: what is deleted
meanwhile is left out, and what is not sealed yet is not looked at.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date

from data_contracts.canonical import digest
from data_contracts.errors import StorageUnavailable, TrainwrightError
from infra.store import Store, layout

# Each sealed directory is read once in so many days.
PERIOD_DAYS = 30

log = logging.getLogger("trainwright")


@dataclass(frozen=True)
class Checked:
    """A sealed directory whose bytes were read.

    Attributes:
        bytes: as sealed; 0 if it is damaged or was not read.
        damage: what is wrong with it, as a sentence that names its file; else "".
        unread: why it could not be read, though the store answers; else "".
    """

    uri: str
    bytes: int = 0
    damage: str = ""
    unread: str = ""


def sealed_directories(store: Store) -> list[str]:
    """The URIs of all sealed directories, sorted.

    Quarantined checkpoints are left out: they are known to be broken, and nothing uses them.

    Raises: CorruptError for a link; StorageUnavailable.
    """
    paths = {file.path for area in layout.SEALED_AREAS for file in store.stored(area)}
    uris = filter(None, map(layout.split_manifest, paths))
    return sorted(uri for uri in uris if layout.quarantined(uri) not in paths)


def due_on(day: date, uris: Iterable[str]) -> list[str]:
    """Those of the sealed directories that are read on a day."""
    return [uri for uri in uris if int(digest(uri), 16) % PERIOD_DAYS == day.toordinal() % PERIOD_DAYS]


def check_each(store: Store, uris: Iterable[str]) -> Iterator[Checked]:
    """Read each sealed directory, whatever is wrong with others; those that are deleted meanwhile are left out.

    Raises: StorageUnavailable if the store does not answer any more.
    """
    for uri in uris:
        try:
            manifest = store.verify(uri)
        except FileNotFoundError:
            continue
        except TrainwrightError as error:
            if store.exists(layout.manifest(uri)):
                log.error("%s", error.message)
                is_away = isinstance(error, StorageUnavailable)
                yield Checked(uri, unread=error.message) if is_away else Checked(uri, damage=error.message)
        else:
            yield Checked(uri, sum(entry.bytes for entry in manifest.files))
