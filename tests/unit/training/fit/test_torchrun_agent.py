"""Which arguments a node's agent hands to torchrun."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest
import torch.distributed.run

from training.fit.torchrun_agent import understood

ARGUMENTS = ["--nnodes=2", "--shutdown-timeout=30", "--no-python", "python"]


def newer() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser()
    options.add_argument("--shutdown-timeout")
    return options


@pytest.mark.parametrize(
    ("options", "left"), [(newer, ARGUMENTS), (argparse.ArgumentParser, ["--nnodes=2", "--no-python", "python"])]
)
def test_torchrun_is_not_given_what_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch, options: Callable[[], argparse.ArgumentParser], left: list[str]
) -> None:
    # torch 2.11 lacks the option.
    monkeypatch.setattr(torch.distributed.run, "get_args_parser", options)
    assert understood(ARGUMENTS) == left
