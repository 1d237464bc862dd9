"""Resolves the environment that a spec names, before anything is booked."""

from __future__ import annotations

import time
from pathlib import Path

from data_contracts.errors import SpecError
from data_contracts.pipeline_spec import PipelineSpec
from infra.environments.cache import resolve as resolve_packages
from infra.environments.packages import Packages
from infra.store import Store
from tasks.run.spec_check import read_spec_requirements


def resolve_environment(
    spec: PipelineSpec, path: Path, store: Store | None = None, *, afresh: bool = False
) -> Packages | None:
    """The packages of the spec's environment, installed on this machine; None without an environment.

    Args:
        path: the spec's file.
        store: the age of a release counts by the earlier of its clock and this machine's: a wrong clock then refuses
            more, and lets nothing through that is too young.
        afresh: whether requirements that were resolved before are resolved again.

    Raises:
        SpecError: they cannot be installed, or lack what reads the data.
    """
    requirements = read_spec_requirements(spec, path)
    if spec.environment is None or requirements is None:
        return None
    wheels = None if spec.environment.wheels is None else path.parent / spec.environment.wheels
    if wheels is not None and not wheels.is_dir():
        raise SpecError(f"{path}: environment.wheels: {wheels} is not a folder.", remedy="Correct the path.")
    packages = resolve_packages(
        requirements,
        spec.environment.build,
        wheels,
        afresh=afresh,
        min_age_days=spec.environment.packages.min_age_days if spec.environment.packages else 0,
        clock=lambda: min(time.time(), store.now_s()) if store else time.time(),
    )
    tracked = not isinstance(spec.data, str) and any(source.rev is not None for source in spec.data.source)
    if tracked and spec.shards is not None and spec.shards.transform and "dvc" not in packages.versions:
        raise SpecError(
            f"{path}: data.source: DVC reads a source with `rev`, and the environment of shards.transform lacks it.",
            remedy=f"Add dvc, with the extra of its remote, to {requirements.place}.",
        )
    return packages
