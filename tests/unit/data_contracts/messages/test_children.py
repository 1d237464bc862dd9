"""The children's requests: what they keep of the user's settings, and which modules read them."""

from __future__ import annotations

import importlib.util
import json
import math
from typing import Any

import pytest

from data_contracts.handoffs import Ref
from data_contracts.messages import children, commands, raw_data
from data_contracts.messages.children import Child
from data_contracts.messages.commands import SizeRequest
from tests.support.child_module import Ask

MODULES = (children, raw_data, commands)
CHILDREN = [found for module in MODULES for found in vars(module).values() if isinstance(found, Child)]


@pytest.mark.parametrize("child", CHILDREN, ids=lambda child: child.module)
def test_a_child_is_a_module_of_ours_that_runs_itself(child: Child[Any, Any]) -> None:
    found = importlib.util.find_spec(child.module)
    [name] = [name for module in MODULES for name, value in vars(module).items() if value is child]
    assert f"child_main({name}, " in found.loader.get_source(child.module)


def test_a_users_settings_arrive_as_they_were_written() -> None:
    train = {"lightning": {"model": {"init_args": {"bound": math.inf, "least": -math.inf, "sizes": [1, 2]}}}}
    request = SizeRequest(train=train, project="/p")
    assert SizeRequest.from_json(json.loads(json.dumps(request.to_json()))) == request
    assert request.to_json()["train"] == train


def test_paths_are_of_one_machine_and_change_nothing_else() -> None:
    code = Ref(uri="code/a", id="a" * 64, seal="b" * 64)
    request = Ask(code=code, text="same")
    here, there = request.at({code.id: "/here"}), request.at({code.id: "/there"})
    assert (str(here.project), str(there.project)) == ("/here", "/there")
    assert here.at({}) == there.at({}) == request
