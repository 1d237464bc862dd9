"""`code`: which files of the user's project are packed for the nodes beside its modules."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field

from data_contracts.pipeline_spec.base import Section


def _below_the_root(pattern: str) -> str:
    path = PurePosixPath(pattern)
    if not pattern.strip() or path.is_absolute() or ".." in path.parts or "\\" in pattern or not path.parts:
        raise ValueError(f"{pattern!r} must be a path or glob below the project's root, with '/' and without '..'")
    return str(path)


Pattern = Annotated[str, AfterValidator(_below_the_root)]


class CodeSpec(Section):
    """Further files of the project to pack into the code bundle."""

    include: list[Pattern] = Field(default_factory=list)
    """Paths, folders or globs below the project's root that are also packed and count as code; default none. A data
    source, a link that leaves the project or a file named like a secret needs its exact path."""
