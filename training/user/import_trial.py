"""The child process that imports a bundle's code before any node is launched.

Run as `python -m training.user.import_trial REQUEST ANSWER`. It imports what a spec names, and reports which left-out
file or which absent module an import needed. Torch-free. An import that fails for another reason is left to the stage
that needs it, because machines differ.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from data_contracts.messages.children import (
    IMPORT_TRIAL,
    ImportTrialAnswer,
    ImportTrialRequest,
    MissingFile,
    MissingModule,
)
from infra.processes.child_main import Report, child_main
from training.user.imports import add_project


def main(request: ImportTrialRequest, report: Report) -> ImportTrialAnswer:
    """Import the modules of the dotted paths from the unpacked bundle."""
    project, origin, left_out = add_project(request.project), Path(request.origin), request.left_out
    lacks: MissingModule | None = None
    for name in request.names:
        try:
            importlib.import_module(name.rpartition(".")[0])
        except BaseException as error:
            for path in _asked_for(error, project, left_out):
                if (origin / path).exists() and not (project / path).exists():
                    return ImportTrialAnswer(missing=MissingFile(name=name, path=path, why=_why(path, left_out)))
            if lacks is None and (module := _absent(error, project)):
                lacks = MissingModule(name=name, module=module)
    return ImportTrialAnswer(missing=None, lacks=lacks)


def _absent(error: BaseException, project: Path) -> str | None:
    """The module that an import did not find anywhere; None if it failed in another way."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    there = (project / package).is_dir() or (project / f"{package}.py").is_file() or package in sys.modules
    return None if not package or there or not isinstance(error, ModuleNotFoundError) else error.name


def _asked_for(error: BaseException, project: Path, left_out: dict[str, str]) -> Iterator[str]:
    """Paths below the project that are missing according to an exception or one that it was raised from."""
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, OSError) and isinstance(link.filename, str | bytes):
            path = Path(os.path.abspath(os.fsdecode(link.filename)))
            if path.is_relative_to(project):
                yield path.relative_to(project).as_posix()
        if isinstance(link, ModuleNotFoundError) and link.name:
            folder = link.name.replace(".", "/")
            yield from (f"{folder}.py", f"{folder}/__init__.py", folder)
        # Libraries that are not written in Python name the file only in their message.
        yield from (path for path in left_out if not path.endswith("/") and path in str(link))
        link = link.__cause__ or link.__context__


def _why(path: str, left_out: dict[str, str]) -> str:
    above = (f"{folder}/" for folder in [path, *map(str, Path(path).parents)])
    return next((left_out[one] for one in (path, *above) if one in left_out), "it is hidden, or no part of the code")


if __name__ == "__main__":
    child_main(IMPORT_TRIAL, main)
