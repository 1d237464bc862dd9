"""The child process that imports a bundle's code, and makes what it names, before any stage begins.

Run as `python -m training.user.import_trial REQUEST ANSWER`. It reports which left-out file or which absent module the
code needed. What fails for another reason is left to the stage that needs it, because machines differ, and there are
no shards yet. Torch-free until a module is made.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_contracts.messages.children import (
    IMPORT_TRIAL,
    ImportTrialAnswer,
    ImportTrialRequest,
    MissingFile,
    MissingModule,
    Tried,
)
from data_contracts.pipeline_spec import SourceSpec
from infra.processes.child_main import Report, child_main
from infra.project import not_found_in
from training.user.imports import add_project, load_callable, make_object

if TYPE_CHECKING:
    import pyarrow as pa

# Raw rows that a transform gets.
ROWS = 64


def main(request: ImportTrialRequest, report: Report) -> ImportTrialAnswer:
    """Import the modules of the dotted paths from the unpacked bundle, make the classes and call the transform."""
    project, origin, left_out = add_project(request.project), Path(request.origin), request.left_out
    rows = _first_rows(request)
    opened = _opened_from_now_on()
    lacks: MissingModule | None = None
    for name, tried, work in _tries(request, project, rows):
        try:
            work()
        except BaseException as error:
            for path in _asked_for(error, project, left_out):
                if (origin / path).exists() and not (project / path).exists():
                    reason = _listed(path, left_out) or "it is hidden, or no part of the code"
                    missing = MissingFile(name=name, path=path, why=reason, tried=tried)
                    return ImportTrialAnswer(missing=missing)
            if lacks is None and (module := _absent(error, project)):
                lacks = MissingModule(name=name, module=module)
    passed_over, outside = [], []
    for file in sorted({Path(os.path.abspath(name)) for name in opened}):
        path = file.relative_to(project).as_posix() if file.is_relative_to(project) else ""
        if path and not file.exists() and (origin / path).exists() and (why := _listed(path, left_out)):
            passed_over.append(MissingFile(name=request.names[0], path=path, why=why))
        path = file.relative_to(origin).as_posix() if not path and file.is_relative_to(origin) else ""
        if path and ((project / path).is_file() or (file.is_file() and _listed(path, left_out))):
            outside.append(path)
    return ImportTrialAnswer(missing=None, lacks=lacks, passed_over=passed_over, outside=outside)


def _tries(
    request: ImportTrialRequest, project: Path, rows: pa.RecordBatch | None
) -> Iterator[tuple[str, Tried, Callable[[], object]]]:
    """What is done with the code, in order: the dotted path that it is for, the verb, and the work."""
    for name in request.names:
        yield name, "imported", partial(importlib.import_module, name.rpartition(".")[0])
    for call in request.made:
        yield call.path, "made", partial(make_object, call.path, call.args, call.path, project)
    if (transform := request.transform) is not None and rows is not None:
        yield transform.path, "called", lambda: load_callable(transform.path, transform.args, "", project)(rows)
    if (train := request.train) is not None:
        yield train["lightning"]["model"]["class_path"], "made", partial(_make_module, train, project)
        if data := train["lightning"].get("data"):
            yield data["class_path"], "made", partial(_make_data_module, train, project)


def _make_module(train: Mapping[str, Any], project: Path) -> None:
    """Make the module without memory for its parameters, up to `configure_model`."""
    import torch

    from training.user.ready import build_module, make_ready, plain_trainer

    with torch.device("meta"):
        module = build_module(train, project, optimizer=True)
        make_ready(module, plain_trainer(train, []), "fit", project, prepared=True)


def _make_data_module(train: Mapping[str, Any], project: Path) -> None:
    from training.user.ready import build_datamodule

    build_datamodule(train, project)


def _first_rows(request: ImportTrialRequest) -> pa.RecordBatch | None:
    """Some raw rows; None if they cannot be read, which the stage that reads them reports."""
    if request.transform is None or request.rows is None:
        return None
    from infra.sources.read import Selection, read_batches

    sources = [SourceSpec.model_validate(source) for source in request.rows.sources]
    chosen = Selection(batch_rows=ROWS)
    try:
        return next(read_batches([request.rows.file], sources, root=Path(request.rows.root), selection=chosen), None)
    except Exception:
        return None


def _opened_from_now_on() -> set[str]:
    """The names of files that this process will have opened for reading; Python's own `open` events tell them."""
    opened: set[str] = set()

    def hear(event: str, details: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(details[0], str) and (details[1] is None or "r" in details[1]):
            opened.add(details[0])

    sys.addaudithook(hear)
    return opened


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
        yield from not_found_in(f"{type(link).__name__}: {link}", list(left_out))
        link = link.__cause__ or link.__context__


def _listed(path: str, left_out: dict[str, str]) -> str | None:
    """Why a file, or a folder above it, was left out; None if it is not among what was."""
    above = (f"{folder}/" for folder in [path, *map(str, Path(path).parents)])
    return next((left_out[one] for one in (path, *above) if one in left_out), None)


if __name__ == "__main__":
    child_main(IMPORT_TRIAL, main)
