"""Which entries of a batch a module without its own predict_step is called with, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch

from data_contracts.errors import UsageError
from data_contracts.pipeline_spec import TrainSpec
from training.fit.guards import refuse_doubtful
from training.user.ready import call_forward, entry_names


class Module(L.LightningModule):
    """Returns the arguments by parameter."""


def one(self: Any, x: Any) -> Any:
    return {"x": x}


def two(self: Any, tokens: Any, mask: Any) -> Any:
    return {"tokens": tokens, "mask": mask}


def optional(self: Any, tokens: Any, mask: Any = None) -> Any:
    return {"tokens": tokens, "mask": mask}


def scaled(self: Any, batch: Any, *, scale: float = 1.0) -> Any:
    return {"batch": batch, "scale": scale}


def keywords(self: Any, **inputs: Any) -> Any:
    return inputs


def several(self: Any, *inputs: Any) -> Any:
    return dict(enumerate(inputs))


def defaults(self: Any, x: Any = None) -> Any:
    return {"x": x}


S = ["a", "b"]  # columns that are stacked

# forward, train.batch, targets, the entries that its parameters get; None: it is refused
CASES: list[tuple[Any, Any, set[str | None], Any]] = [
    (one, ["x", "y"], {"y"}, {"x": "x"}),
    (one, [S, "y"], {"y"}, {"x": 0}),
    (one, ["a", "id", "y"], {"y"}, {"x": "a"}),
    (one, ["id", "x", "y"], {"y"}, {"x": "x"}),
    (one, ["y", S], {"y"}, {"x": 1}),
    (one, ["y", S], {"0"}, {"x": 1}),
    (one, [S, "y"], {"-1"}, {"x": 0}),
    (one, [S, "y"], {None}, {"x": 0}),
    (one, {"x": "a", "y": "b"}, {"y"}, {"x": "x"}),
    (one, {"a": "a", "y": "b"}, {"y"}, {"x": "a"}),
    (one, {"x": "a", "id": "i", "y": "b"}, {"y"}, {"x": "x"}),
    (one, {"a": "a", "b": "i", "y": "b"}, {"y"}, {"x": {"a": "a", "b": "b"}}),
    (two, ["tokens", "mask", "y"], {"y"}, {"tokens": "tokens", "mask": "mask"}),
    (two, ["mask", "tokens", "y"], {"y"}, {"tokens": "tokens", "mask": "mask"}),
    (two, ["y", "tokens", "id", "mask"], {"y"}, {"tokens": "tokens", "mask": "mask"}),
    (two, [S, "mask", "y"], {"y"}, {"tokens": 0, "mask": "mask"}),
    (two, [S, S, "y"], {"y"}, {"tokens": 0, "mask": 1}),
    (two, ["p", "q", "r", "y"], {"y"}, None),
    (two, ["p", "y"], {"y"}, None),
    (two, {"tokens": "t", "mask": "m", "id": "i", "y": "y"}, {"y"}, {"tokens": "tokens", "mask": "mask"}),
    (two, {"t": "t", "mask": "m", "y": "y"}, {"y"}, {"tokens": "t", "mask": "mask"}),
    (two, {"t": "t", "m": "m", "y": "y"}, {"y"}, None),
    (optional, ["tokens", "mask", "y"], {"y"}, {"tokens": "tokens", "mask": "mask"}),
    (optional, {"tokens": "t", "mask": "m", "y": "y"}, {"y"}, {"tokens": "tokens", "mask": "mask"}),
    (optional, {"tokens": "t", "id": "m", "y": "y"}, {"y"}, {"tokens": "tokens", "mask": None}),
    (optional, ["tokens", "y"], {"y"}, {"tokens": "tokens", "mask": None}),
    (optional, [S, "y"], {"y"}, {"tokens": 0, "mask": None}),
    (optional, [S, "mask", "y"], {"y"}, {"tokens": 0, "mask": "mask"}),
    (optional, [S, S, "y"], {"y"}, None),
    (optional, ["tokens", "m", "y"], {"y"}, None),
    (optional, [S, "y"], set(), {"tokens": 0, "mask": None}),
    (scaled, {"a": "a", "b": "b", "y": "y"}, {"y"}, {"batch": {"a": "a", "b": "b"}, "scale": 1.0}),
    (keywords, {"a": "a", "b": "b", "y": "y"}, {"y"}, {"a": "a", "b": "b"}),
    (several, ["a", "b", "y"], {"y"}, {0: "a", 1: "b"}),
    (defaults, ["a", "y"], {"y"}, {"x": "a"}),
]


@pytest.mark.parametrize(("forward", "spec", "targets", "expected"), CASES)
@pytest.mark.parametrize("known", [True, False], ids=["before the training", "with a batch"])
def test_entries_go_to_the_parameters_that_training_gives_them(
    known: bool, forward: Any, spec: Any, targets: set[str | None], expected: Any
) -> None:
    module = type("Module", (Module,), {"forward": forward})()
    names = entry_names(spec)
    values = [name or at for at, name in enumerate(names)]
    batch = dict(zip(names, values, strict=True)) if isinstance(spec, dict) else tuple(values)

    def match() -> Any:
        if not known:
            return call_forward(module, batch, targets, spec)
        train = TrainSpec(lightning={}, global_batch_size=8, batch=spec)
        asked = [one for one in targets if one is not None]
        context: Any = SimpleNamespace(train=train, dataset=SimpleNamespace(columns={}), targets=asked)
        refuse_doubtful(module, context)
        return expected

    if expected is not None:
        assert match() == expected
        return
    with pytest.raises(
        UsageError, match=r"^train\.batch: forward takes tokens, mask, and it is in doubt which .* write a"
    ):
        match()


def test_without_a_batch_setting_the_columns_are_the_entries_and_a_transform_may_make_others() -> None:
    class Two(Module):
        def forward(self, tokens: Any, mask: Any) -> Any:
            return tokens, mask

    def refuse(module: L.LightningModule, columns: list[str], **train: Any) -> None:
        spec = TrainSpec(lightning={}, global_batch_size=8, **train)
        context: Any = SimpleNamespace(
            train=spec, dataset=SimpleNamespace(columns=dict.fromkeys(columns)), targets=["y"]
        )
        refuse_doubtful(module, context)

    refuse(Two(), ["id", "mask", "tokens", "y"])
    with pytest.raises(UsageError, match=r"the entries of a batch \(p, q\)"):
        refuse(Two(), ["p", "q", "y"])
    refuse(Two(), ["p", "q", "y"], transform="a.b")
    refuse(type("Predicts", (Two,), {"predict_step": lambda self, batch: batch})(), ["p", "y"])


def test_what_a_loader_of_the_users_gives_is_matched_by_position() -> None:
    class Two(Module):
        def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return tokens * mask

    x, mask, y = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0]), torch.tensor([1, 1])
    assert call_forward(Two(), [x, mask, y], {"2"}, None).tolist() == [0.0, 2.0]
    assert call_forward(type("One", (Module,), {"forward": one})(), x, {"y"}, None)["x"] is x
