"""Tiny wheels and source distributions, made without a network, and a folder of them to install from."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path


def write_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, str] | None = None, needs: Iterable[str] = ()
) -> Path:
    """Write a wheel of pure Python; by default its package has `version` alone."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    contents = dict(files) if files is not None else {f"{name}/__init__.py": f"version = {version!r}\n"}
    contents[f"{info}/METADATA"] = _metadata(name, version, needs)
    contents[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = [f"{path},sha256={_digest(text)},{len(text.encode())}" for path, text in contents.items()]
    contents[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,\n"])
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in contents.items():
            wheel.writestr(file, text)
    return path


def write_sdist(folder: Path, name: str, version: str, backend: str) -> Path:
    """Write a source distribution whose build is the text of a Python module, without needs of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    root = f"{name}-{version}"
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    files = {"PKG-INFO": _metadata(name, version, ()), "pyproject.toml": project, "backend.py": backend}
    path = folder / f"{root}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in files.items():
            entry = tarfile.TarInfo(f"{root}/{file}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path


def _metadata(name: str, version: str, needs: Iterable[str]) -> str:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {one}" for one in needs),
    ]
    return "\n".join([*lines, "", ""])


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
