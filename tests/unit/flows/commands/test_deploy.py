"""`deploy`: the command that it prints starts a run of the deployment that it made."""

from __future__ import annotations

import shlex

import pytest

from flows.cli import parser
from flows.commands.deploy import _answer
from infra.orchestrator.deployments import PipelineDeployment


@pytest.mark.parametrize("more", [[], ["--pool", "nights"], ["--name", "every hour", "--pool", "nights"]])
def test_the_command_that_starts_a_run_is_of_this_deployment(more: list[str]) -> None:
    asked = parser().parse_args(["deploy", "a folder/spec.yaml", *more, "--cron", "0 3 * * *"])
    made = PipelineDeployment(name=asked.name or "spec", pool=asked.pool, spec="/a folder/spec.yaml", schema={})
    text = _answer(asked, made, "on demand", [], worker=True, ui="").text
    program, *words = shlex.split(text.rpartition("To start a run: ")[2])
    printed = parser().parse_args(words)
    assert (program, printed.spec, printed.name, printed.pool) == ("trainwright", asked.spec, asked.name, asked.pool)
    assert printed.start
