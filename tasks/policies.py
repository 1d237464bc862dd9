"""Every retry, timeout, concurrency limit and tag that Prefect gets, in one place.

A stage's causes and budgets are ours (`retry` in the spec, carried out where the work is done), so Prefect itself
retries nothing: its retry would only repeat what the budget already decided. Its task cache is off, because reuse is by
key in the store.
"""

from __future__ import annotations

from typing import Any


def task_policy(stage: str) -> dict[str, Any]:
    """Keyword arguments of `@task` for a stage."""
    from prefect.cache_policies import NO_CACHE  # a run without Prefect takes its tags from this module

    return {
        "name": stage,
        "task_run_name": stage + " {run.spec.name}",
        "retries": 0,
        "cache_policy": NO_CACHE,
        "persist_result": False,
        "tags": ["trainwright", f"stage:{stage}"],
    }


def pipeline_tags(pipeline: str, tags: dict[str, str]) -> list[str]:
    """The Prefect tags of a pipeline's deployment and of its flow runs: which pipeline it is, and its cost tags."""
    return [f"pipeline:{pipeline}", *run_tags(tags)]


def run_tags(tags: dict[str, str]) -> list[str]:
    """A spec's cost tags as Prefect tags: `key:value`."""
    return [f"{key}:{value}" for key, value in sorted(tags.items())]
