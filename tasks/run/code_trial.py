"""Checks, before any stage begins, that the code of a bundle finds its files and the packages that it imports.

A child imports it from the bundle, and makes the module, the tokenizers and the metrics. This takes seconds, so it runs
once per bundle and spec on a machine, and only if the code has an environment of its own or mentions a file that was
left out.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from data_contracts.canonical import KEY_LENGTH, digest
from data_contracts.errors import Hung, TrainwrightError, UsageError
from data_contracts.handoffs import SourceFile
from data_contracts.messages.children import IMPORT_TRIAL, ImportTrialAnswer, ImportTrialRequest, TrialRows, TriedCall
from data_contracts.pipeline_spec import PipelineSpec
from infra import scratch
from infra.child import run_child
from infra.code_bundle import CodeBundle, unpack
from infra.files import replace_json
from infra.processes.environment import NO_SHAKEDOWN
from infra.project import SOURCE, ProjectFiles, is_in_project
from infra.settings import state_folder
from infra.store import Store
from tasks.run.spec_check import named_code, named_tokenizers

TIMEOUT_S = 120.0
MEMORY_SHARE = 0.5
# Larger files are not read for a transform's trial, nor looked through for names of other files.
MOST_ROWS_BYTES, MOST_TEXT_BYTES = 2**26, 2**18
log = logging.getLogger("trainwright")


def refuse_incomplete(
    store: Store,
    bundle: CodeBundle,
    spec: PipelineSpec,
    lightning: dict[str, Any],
    own: Iterable[str],
    raw: Callable[[], list[SourceFile]],
    root: Path,
) -> None:
    """UsageError if the spec's code needs a file that was left out, or a module that is not installed.

    Args:
        own: dotted paths of the suites' own expectations.
        raw: the files of `data.source`.
        root: the spec's folder.
    """
    environment = None if spec.environment is None else spec.environment.file
    request = _request(bundle, spec, lightning, own)
    calls = [*request.made, *([request.transform] if request.transform else [])]
    settings = json.dumps([lightning["model"], lightning.get("data"), [call.args for call in calls]])
    key = digest([bundle.ref.id, sorted(request.names), settings, request.train is None])
    tried = state_folder() / "tried" / key[:KEY_LENGTH]
    if tried.exists():
        for sentence in json.loads(tried.read_text()):
            log.warning("%s", sentence)
        return
    if environment is None and not _mentions_left_out(bundle.chosen, request.names, settings, bundle.root):
        return
    with scratch.make("trial") as folder:
        project = unpack(store, bundle.ref, folder.path / "project", code_digest=bundle.digest)
        rows = _rows(spec, raw(), root) if request.transform else None
        request = request.model_copy(update={"project": str(project), "rows": rows})
        withhold = not isinstance(spec.data, str) and bool(spec.data.sensitive)
        run = partial(run_child, IMPORT_TRIAL, limit=TIMEOUT_S, memory_share=MEMORY_SHARE)
        try:
            answer = run(request, project=project, withhold=withhold)
        except TrainwrightError as error:
            # Not an error of the user's: code that fails here may still run on the machines that train.
            log.info("it is unknown before the start whether the code finds its files: %s", error.message)
            if isinstance(error, Hung):
                _keep(tried, [])
            return
    if (missing := answer.missing) is not None:
        raise UsageError(
            f"{missing.name} cannot be {missing.tried} from the packed files of the project {bundle.root}: it needs "
            f"{missing.path}, which is left out, because {missing.why}.",
            remedy=f"If it may be stored, add code.include: [{missing.path}] to the spec.",
        )
    if environment is not None and (lack := answer.lacks) is not None:
        raise UsageError(
            f"{lack.name} cannot be imported: it needs the module {lack.module}, which neither the project "
            f"{bundle.root} nor its environment has.",
            remedy=f"Add the package that has {lack.module} to {environment}.",
        )
    sentences = list(_remarks(answer, bundle.root))
    for sentence in sentences:
        log.warning("%s", sentence)
    _keep(tried, sentences)


def _request(
    bundle: CodeBundle, spec: PipelineSpec, lightning: dict[str, Any], own: Iterable[str]
) -> ImportTrialRequest:
    """What is tried of a spec's code, without the folder where it is tried; imports alone without a shakedown."""
    made = [TriedCall(path=one.class_path, args=one.init_args) for _, one in named_tokenizers(spec)]
    for metric in spec.evaluate.metrics.values():
        made += [TriedCall(path=metric.class_path, args=metric.init_args)] if metric.class_path else []
    transform = spec.shards.transform if spec.shards else None
    whole = not os.environ.get(NO_SHAKEDOWN)
    return ImportTrialRequest(
        names=[*(name for _, name in named_code(spec, lightning)), *own],
        left_out={one.path: one.why for one in bundle.chosen.left_out},
        project="",
        origin=str(bundle.root),
        train={"lightning": lightning, "seed": spec.train.seed} if whole else None,
        made=[call for call in made if whole and is_in_project(bundle.root, call.path)],
        transform=TriedCall(path=transform.call, args=transform.args) if transform and whole else None,
    )


def _remarks(answer: ImportTrialAnswer, root: Path) -> Iterator[str]:
    for one in answer.passed_over:
        yield (
            f"The code tries to open {one.path} and runs without it, because it is left out of the packed files: "
            f"{one.why}. If it may be stored, add code.include: [{one.path}] to the spec."
        )
    for path in answer.outside:
        yield (
            f"The code opens {root / path} by its full path, so it reads this machine's file, not a packed one: open "
            f"{path}, relative to the project's root, and add code.include: [{path}] to the spec."
        )


def _keep(tried: Path, sentences: list[str]) -> None:
    tried.parent.mkdir(exist_ok=True)
    replace_json(tried, sentences)


def _rows(spec: PipelineSpec, files: list[SourceFile], root: Path) -> TrialRows | None:
    """The smallest file of raw rows; None if none is small."""
    small = min(files, key=lambda file: file.bytes, default=None)
    if small is None or small.bytes > MOST_ROWS_BYTES or isinstance(spec.data, str):
        return None
    sources = [source.model_dump(mode="json") for source in spec.data.source]
    return TrialRows(file=small, sources=sources, root=str(root))


def _mentions_left_out(chosen: ProjectFiles, names: Iterable[str], settings: str, root: Path) -> bool:
    """Whether the settings, or a packed file that the code may import or read, name a file that was left out.

    The project's own path counts as well, because full paths lead past the packed files.
    """
    words = {os.fsencode(word) for one in chosen.left_out for word in _words(PurePosixPath(one.path), one.why)}
    waiting, words = [" ".join(names).encode(), settings.encode()], words | {os.fsencode(root)}
    rest = {name: path for name, path in chosen.packed.items() if path.stat().st_size <= MOST_TEXT_BYTES}
    while waiting:
        text = waiting.pop()
        if any(word in text for word in words):
            return True
        for name in [name for name in rest if re.search(_mention(PurePosixPath(name)), text)]:
            waiting.append(rest.pop(name).read_bytes())
    return False


def _mention(path: PurePosixPath) -> bytes:
    """How code speaks of a packed file: of a module by its name, of another by its file's."""
    module = path.parent.name if path.stem == "__init__" else path.stem
    return rb"\b" + re.escape(os.fsencode(module if path.suffix == ".py" else path.name)) + rb"\b"


def _words(path: PurePosixPath, why: str) -> Iterator[str]:
    if path.suffix == ".py":
        yield path.stem
        return
    yield from {path.name, path.suffix or path.name}
    # The word for a folder, such as "data", is frequent, so it counts in quotation marks alone.
    for folder in path.parents if why != SOURCE else ():
        yield from (f"'{folder.name}'", f'"{folder.name}"', f"{folder.name}/") if folder.name else ()
