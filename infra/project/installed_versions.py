"""The installed versions that decide the bytes of results: Python, libraries, and our own modules by digest."""

from __future__ import annotations

import functools
import sys
from importlib import metadata

from blake3 import blake3

from infra.processes.processes import CODE_ROOT

LIBRARIES = ("duckdb", "numba", "numpy", "pandas", "prefect", "prefect-dask", "pyarrow")
ROOMS = ("data_contracts", "infra", "tasks", "training")


@functools.cache
def installed() -> dict[str, str]:
    """Versions by name; ImportError if a library is missing."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    versions = {name: metadata.version(name) for name in LIBRARIES}
    return {"Python": python, "Trainwright": source_digest()[:12], **versions}


@functools.cache
def source_digest() -> str:
    """BLAKE3 over our own modules, 64 hexadecimal digits."""
    ours = blake3()
    for room in ROOMS:
        for path in sorted((CODE_ROOT / room).rglob("*.py")):
            ours.update(f"{path.relative_to(CODE_ROOT)}\n".encode() + path.read_bytes())
    return ours.hexdigest()


def differences(wanted: dict[str, str]) -> list[str]:
    """The installed versions that differ from `wanted`, an earlier result of `installed()`, in words."""
    return [f"{name} {here} instead of {wanted[name]}" for name, here in installed().items() if here != wanted[name]]
