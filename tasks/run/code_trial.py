"""Checks, before any node is launched, that the code of a bundle finds its files and the packages that it imports.

A child imports it from the bundle. This takes seconds, so it runs once per bundle on a machine, and only if the code
has an environment of its own or a module mentions a file that was left out.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from data_contracts.canonical import KEY_LENGTH, digest
from data_contracts.errors import TrainwrightError, UsageError
from data_contracts.messages.children import IMPORT_TRIAL, ImportTrialRequest
from infra import scratch
from infra.child import run_child
from infra.machine.settings import state_folder
from infra.project.code_bundle import CodeBundle, unpack
from infra.project.project_files import ProjectFiles
from infra.store import Store

TIMEOUT_S = 120.0
log = logging.getLogger("trainwright")


def refuse_incomplete(store: Store, bundle: CodeBundle, names: Sequence[str], environment: str | None = None) -> None:
    """UsageError if importing the spec's code needs a file that was left out, or a module that is not installed.

    Args:
        names: dotted paths of classes and functions.
        environment: `environment.file` of the spec.
    """
    tried = state_folder() / "tried" / digest([bundle.ref.id, sorted(names)])[:KEY_LENGTH]
    if tried.exists() or (environment is None and not _mentions_left_out(bundle.chosen)):
        return
    left_out = {one.path: one.why for one in bundle.chosen.left_out}
    with scratch.make("trial") as folder:
        project = unpack(store, bundle.ref, folder.path / "project", code_digest=bundle.digest)
        request = ImportTrialRequest(
            names=list(names), left_out=left_out, project=str(project), origin=str(bundle.root)
        )
        try:
            found = run_child(IMPORT_TRIAL, request, project=project, limit=TIMEOUT_S)
        except TrainwrightError as error:
            # Not an error of the user's: code that fails here may still run on the machines that train.
            log.info("it is unknown before the start whether the code finds its files: %s", error.message)
            return
    if (missing := found.missing) is not None:
        raise UsageError(
            f"{missing.name} cannot be imported from the packed files of the project {bundle.root}: it needs "
            f"{missing.path}, which is left out, because {missing.why}.",
            remedy=f"If it may be stored, add code.include: [{missing.path}] to the spec.",
        )
    if environment is not None and (lack := found.lacks) is not None:
        raise UsageError(
            f"{lack.name} cannot be imported: it needs the module {lack.module}, which neither the project "
            f"{bundle.root} nor its environment has.",
            remedy=f"Add the package that has {lack.module} to {environment}.",
        )
    tried.parent.mkdir(exist_ok=True)
    tried.touch()


def _mentions_left_out(chosen: ProjectFiles) -> bool:
    """Whether the text of a packed module contains the name or the suffix of a file that was left out."""
    words = {os.fsencode(word) for one in chosen.left_out for word in _words(PurePosixPath(one.path))}
    modules = [path for name, path in chosen.packed.items() if name.endswith(".py")] if words else []
    return any(word in text for text in map(Path.read_bytes, modules) for word in words)


def _words(path: PurePosixPath) -> Iterator[str]:
    if path.suffix == ".py":
        yield path.stem
    else:
        yield from {path.name, path.suffix or path.name}
