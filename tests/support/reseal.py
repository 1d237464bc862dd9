"""Changes files of a sealed directory and seals it again in its place, as anyone who can write to the store may do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from data_contracts.handoffs import FileEntry, Ref
from infra.files import file_digest
from infra.store.seal import write_manifest


def reseal(
    store: Path,
    uri: str,
    files: dict[str, bytes] | None = None,
    settings: Callable[[dict[str, Any]], None] = lambda settings: None,
    provenance: Callable[[dict[str, Any]], None] = lambda provenance: None,
) -> Ref:
    """Put `files` into the directory and write a manifest that is whole: files, id and seal agree.

    Args:
        settings: changes the manifest's settings in place; `provenance` its provenance.
    """
    folder = store / uri
    before = json.loads((folder / "manifest.json").read_text())
    for name, data in (files or {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(data)
    entries = [
        FileEntry(path=path.relative_to(folder).as_posix(), bytes=path.stat().st_size, blake3=file_digest(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / "manifest.json"
    ]
    content = before["content"]
    settings(content["settings"])
    provenance(before["provenance"])
    data, identity = write_manifest(content["kind"], content["settings"], before["provenance"], entries)
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").write_bytes(data)
    return Ref(uri=uri, id=identity, seal=json.loads(data)["seal"])
