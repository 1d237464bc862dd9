"""Files beside a pipeline that connect it: Prefect's and DVC's, and the workflows of CI hosts.

They are made of this repository's own files, which its tests run or hold against published schemas.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from data_contracts.errors import UsageError
from infra.audit import revision
from infra.git import run_git
from infra.processes.processes import CODE_ROOT

SPEC = "pipeline.yaml"
_EXAMPLE = "examples/digits/"
_ELSEWHERE = """\
# Not the project's folder: Prefect puts the one that is named here on the import path of the run's process, which has
# passwords and keys that the project's code does not get.
pull:
"""


def project_extras(wanted: Sequence[str], name: str, folder: Path) -> dict[Path, str]:
    """The content of each file, by its path. Workflows are at the root of the Git repository that `folder` lies in.

    Args:
        wanted: keys of `EXTRAS`.
        name: of the pipeline, which is also its deployment's.
        folder: the project's, whose spec is `pipeline.yaml`; it need not exist yet.

    Raises: UsageError if a workflow cannot name the spec.
    """
    return dict(EXTRAS[one](name, folder) for one in wanted)


def _github(name: str, folder: Path) -> tuple[Path, str]:
    root, spec = _in_repository(folder)
    own = "" if root == folder else f"-{name}"
    return root / f".github/workflows/trainwright{own}.yml", _workflow("github", name, spec)


def _gitlab(name: str, folder: Path) -> tuple[Path, str]:
    root, spec = _in_repository(folder)
    return root / ".gitlab-ci.yml", _workflow("gitlab", name, spec)


def _in_repository(folder: Path) -> tuple[Path, str]:
    """The root of the repository that a folder lies in, or else the folder, and the spec's path from there."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if answer := run_git(there, "rev-parse", "--show-toplevel").stdout.rstrip(b"\n"):
            root = Path(os.fsdecode(answer))
            if folder.resolve() != root.resolve():
                return root, (folder.resolve().relative_to(root.resolve()) / SPEC).as_posix()
    return folder, SPEC


def _workflow(host: str, name: str, spec: str) -> str:
    if not re.fullmatch(r"[\w./-]+", spec):
        sentence = f"{spec!r} has characters that the commands of a workflow cannot name."
        raise UsageError(sentence, remedy="Rename the folder: letters, digits, `_`, `.` and `-`.")
    text = (CODE_ROOT / "examples/ci" / f"{host}.yml").read_text()
    commit, _ = revision(CODE_ROOT)
    text = re.sub(r"\bREVISION\b", commit or "HEAD", text)
    return text.replace("ci SPEC", f"ci {spec}").replace("PIPELINE", name)


def _prefect(name: str, folder: Path) -> tuple[Path, str]:
    """The deployment of one pipeline, as prefect.yaml has it for the digits."""
    text = (CODE_ROOT / "prefect.yaml").read_text()
    begin, end = text.index("name: trainwright\n"), text.index("\n  - <<: *retrain\n    name: stdlib-gpt")
    head = (
        "# `prefect deploy --all`, called in this folder, deploys the pipeline; `trainwright up` makes the work pool\n"
        "# and starts its worker. A scheduled run's time is its idempotency key, so a night is never trained twice.\n\n"
    )
    body = (
        text[begin:end]
        .replace("pull:\n", _ELSEWHERE)
        .replace('directory: "{{ checkout.stdout }}"', "directory: /")
        .replace(f"{_EXAMPLE}pipeline.yaml", '"{{ checkout.stdout }}/pipeline.yaml"')
        .replace("name: digits", f'name: "{name}"')
        .replace("pipeline:digits", f"pipeline:{name}")
    )
    body = body.replace("Handwritten digits, trained with DDP.", f"Runs the pipeline {name}.")
    return folder / "prefect.yaml", head + body


def _dvc(_: str, folder: Path) -> tuple[Path, str]:
    """The line as DVC stages, as dvc.yaml has it for the digits; the project prepares its data itself."""
    text = (CODE_ROOT / "dvc.yaml").read_text()
    begin, stages = text.index("stages:\n"), text.index("  validate:\n")
    head = (
        "# The pipeline as DVC stages: `dvc repro` runs what changed; `dvc metrics show` and `dvc plots show` give\n"
        "# metrics and curves. The outs are hand-offs; what they point to lies sealed in the store, which is never a\n"
        "# DVC out. Name in deps what your pipeline reads.\n"
    )
    body = text[begin : begin + len("stages:\n")] + text[stages:]
    return folder / "dvc.yaml", head + body.replace(_EXAMPLE, "")


EXTRAS: dict[str, Callable[[str, Path], tuple[Path, str]]] = {
    "prefect": _prefect,
    "dvc": _dvc,
    "github": _github,
    "gitlab": _gitlab,
}
