"""A place that ignores conditions, and what must hold of a store there whose names are in a database."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from infra.store import database
from infra.store.database import NamedBackend, Names
from infra.store.folder import FolderBackend, _tag


class Careless(FolderBackend):
    """A place that is not this machine's and ignores conditions: a second `create` overwrites."""

    is_local = False

    def create(self, path: str, data: bytes) -> str:
        target = self.root / path
        with self._draft() as draft:
            draft.write(data)
            while True:
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    draft.rename(target)  # at once, so two writers at the same moment both succeed
                    return _tag(data)
                except FileNotFoundError:  # somebody deleted the folder, which was empty
                    pass


def rows(table: Names) -> dict[str, tuple[str | None, str]]:
    """Path and state of every object that the database knows."""
    query = select(database._TABLE)
    found = table._do(lambda connection: connection.execute(query).all())
    return {row.object: (row.path, row.state) for row in found}


def nothing_is_unknown(objects: Careless, table: Names) -> None:
    """Each object that is stored is known, and what has a name is stored."""
    stored = {f"objects/{path}" for path in objects.walk("objects")}
    known = rows(table)
    assert stored <= known.keys()
    assert {name for name, (_, state) in known.items() if state == "named"} <= stored


def swept(backend: NamedBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A day later nothing is left but what has a name."""
    with monkeypatch.context() as patch:
        patch.setattr(database, "_SWEEP_AFTER_S", -60)
        backend.sweep()
    stored = {f"objects/{path}" for path in backend._objects.walk("objects")}
    assert stored == rows(backend._names).keys()
    assert all(state == "named" for _, state in rows(backend._names).values())
