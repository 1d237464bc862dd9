"""A Prefect server's deployments, in memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from prefect.exceptions import ObjectNotFound


class Deployments:
    """Those that are `known` by `FLOW/NAME`, and how many were `made`."""

    def __init__(self, **known: Any) -> None:
        self.known, self.made = known, 0

    def read_work_pool(self, name: str) -> Any:
        return SimpleNamespace(name=name, type="process")

    def read_deployment_by_name(self, name: str) -> Any:
        if name not in self.known:
            raise ObjectNotFound(Exception("404"))
        return self.known[name]

    def create_flow_from_name(self, name: str) -> str:
        return name

    def create_deployment(self, flow: str, name: str, **fields: Any) -> Any:
        self.made += 1
        self.known[f"{flow}/{name}"] = SimpleNamespace(id=uuid4(), **fields)
        return self.known[f"{flow}/{name}"].id
