"""Files beside a pipeline that connect it: Prefect's and DVC's, and the workflows of CI hosts.

They are made of this repository's own files, which its tests run or hold against published schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from infra.processes.processes import CODE_ROOT

_EXAMPLE = "examples/digits/"


def project_extras(wanted: Sequence[str], name: str) -> dict[str, str]:
    """The content of each file, by its path from the project's folder, whose spec is `pipeline.yaml`.

    Args:
        wanted: keys of `EXTRAS`.
        name: of the pipeline, which is also its deployment's.
    """
    return {path: make(name) for path, make in (EXTRAS[one] for one in wanted)}


def _workflow(host: str) -> Callable[[str], str]:
    def make(name: str) -> str:
        text = (CODE_ROOT / "examples/ci" / f"{host}.yml").read_text()
        return text.replace("ci SPEC", "ci pipeline.yaml").replace("PIPELINE", name)

    return make


def _prefect(name: str) -> str:
    """The deployment of one pipeline, as prefect.yaml has it for the digits."""
    text = (CODE_ROOT / "prefect.yaml").read_text()
    begin, end = text.index("name: trainwright\n"), text.index("\n  - <<: *retrain\n    name: stdlib-gpt")
    head = (
        "# `prefect deploy --all`, called in this folder, deploys the pipeline; `trainwright up` makes the work pool\n"
        "# and starts its worker. A scheduled run's time is its idempotency key, so a night is never trained twice.\n\n"
    )
    body = (
        text[begin:end].replace(f"{_EXAMPLE}pipeline.yaml", "pipeline.yaml").replace("name: digits", f'name: "{name}"')
    )
    return head + body.replace("Handwritten digits, trained with DDP.", f"Runs the pipeline {name}.")


def _dvc(_: str) -> str:
    """The line as DVC stages, as dvc.yaml has it for the digits; the project prepares its data itself."""
    text = (CODE_ROOT / "dvc.yaml").read_text()
    begin, stages = text.index("stages:\n"), text.index("  validate:\n")
    head = (
        "# The pipeline as DVC stages: `dvc repro` runs what changed; `dvc metrics show` and `dvc plots show` give\n"
        "# metrics and curves. The outs are hand-offs; what they point to lies sealed in the store, which is never a\n"
        "# DVC out. Name in deps what your pipeline reads.\n"
    )
    return head + (text[begin : begin + len("stages:\n")] + text[stages:]).replace(_EXAMPLE, "")


EXTRAS: dict[str, tuple[str, Callable[[str], str]]] = {
    "prefect": ("prefect.yaml", _prefect),
    "dvc": ("dvc.yaml", _dvc),
    "github": (".github/workflows/trainwright.yml", _workflow("github")),
    "gitlab": (".gitlab-ci.yml", _workflow("gitlab")),
}
