"""The deployment of a pool's nodes: made once, refreshed if it is ours, left alone if a person made it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from prefect.utilities.callables import parameter_schema

from flows.node import node
from infra.orchestrator.deployments import NODE_ENTRYPOINT, NODE_SCHEMA, NODE_TAG, ensure_node_deployment
from infra.processes.processes import CODE_ROOT
from tests.support.deployed import Deployments


def test_the_entrypoint_and_its_parameters_are_those_of_the_flow() -> None:
    assert f"{node.fn.__module__}.{node.fn.__name__}" == NODE_ENTRYPOINT
    schema = parameter_schema(node.fn)
    assert schema.required == NODE_SCHEMA["required"]
    kinds = {name: field["type"] for name, field in schema.properties.items()}
    assert kinds == {name: field["type"] for name, field in NODE_SCHEMA["properties"].items()}


def test_it_is_made_once_and_refreshed_when_it_was_changed() -> None:
    server: Any = Deployments()
    made = ensure_node_deployment(server, "gpu", "process")
    [deployment] = server.known.values()
    assert deployment.pull_steps == [{"prefect.deployments.steps.set_working_directory": {"directory": str(CODE_ROOT)}}]
    assert str(CODE_ROOT) in deployment.description
    assert (ensure_node_deployment(server, "gpu", "process"), server.made) == (made, 1)
    deployment.pull_steps = [{"prefect.deployments.steps.set_working_directory": {"directory": "/old"}}]
    ensure_node_deployment(server, "gpu", "process")
    assert (len(server.known), server.made) == (1, 2)
    for _ in range(2):
        ensure_node_deployment(server, "cluster", "kubernetes")
    assert (server.known["node/cluster"].pull_steps, server.made) == ([], 3), "an image has the code where it has it"


def test_two_checkouts_on_one_pool_run_their_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    server: Any = Deployments()
    mine = ensure_node_deployment(server, "gpu", "process")
    monkeypatch.setattr("infra.orchestrator.deployments.CODE_ROOT", "/another/checkout")
    theirs = ensure_node_deployment(server, "gpu", "process")
    folders = [step["directory"] for one in server.known.values() for [step] in [one.pull_steps[0].values()]]
    assert (mine != theirs, folders) == (True, [str(CODE_ROOT), "/another/checkout"])
    monkeypatch.undo()
    assert (ensure_node_deployment(server, "gpu", "process"), server.made) == (mine, 2)


def test_one_that_a_person_made_is_used_as_it_is() -> None:
    server: Any = Deployments()
    theirs = SimpleNamespace(id=uuid4(), tags=["theirs"], pull_steps=[], entrypoint="x", work_pool_name="gpu")
    server.known["node/gpu"] = theirs
    assert (ensure_node_deployment(server, "gpu", "process"), server.made) == (theirs.id, 0)
    theirs.tags = [NODE_TAG]  # an earlier version's, which every checkout shared
    assert ensure_node_deployment(server, "gpu", "process") != theirs.id
    assert server.known["node/gpu"] is theirs
