"""`code` and `environment`: the files that are packed for the nodes beside a project's modules, and their packages."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from data_contracts.pipeline_spec.base import FieldError, Section, Shorthand


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


class PackagesSpec(Section):
    """Which releases of packages may be installed."""

    min_age_days: int = Field(ge=1, le=3650)
    """Refuse files that were uploaded fewer days ago, by the index's upload times; one without a time is refused."""


class EnvironmentSpec(Shorthand):
    """The packages that your code needs, installed on every machine that imports it; a plain string is short for
    `file`.
    """

    short_for: ClassVar[str] = "file"

    file: Annotated[str, Field(min_length=1)]
    """A file of requirements, or a folder with `pyproject.toml` and `uv.lock`; relative to the spec's folder."""
    build: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]] = Field(
        default_factory=list
    )
    """Names of packages that are built from source, which runs their code; others come as wheels. Default none."""
    wheels: str | None = None
    """Folder of wheels, relative to the spec's folder, that this machine installs from instead of an index; other
    machines use pip's settings of their own. Default: the indexes that pip is set to use."""
    packages: PackagesSpec | None = Field(default=None, exclude_if=lambda packages: packages is None)
    """Which releases may be installed; default: all."""

    @model_validator(mode="after")
    def _has_upload_times(self) -> Self:
        if self.packages is not None and self.wheels is not None:
            raise FieldError("wheels", "has no upload times, which packages.min_age_days needs; leave one of them out")
        return self
