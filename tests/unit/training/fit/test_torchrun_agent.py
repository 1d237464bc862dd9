"""Which arguments a node's agent hands to torchrun."""

from __future__ import annotations

import argparse

import lightning  # noqa: F401 - the agent leaves modules of torch's out where nobody has imported them yet
import pytest
import torch.distributed.run

from training.fit.torchrun_agent import understood

ARGUMENTS = ["--nnodes=2", "--shutdown-timeout=30", "--no-python", "python"]


def test_an_older_torchrun_is_not_given_what_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    assert understood(ARGUMENTS) == ARGUMENTS
    # As in torch 2.11, which lacks the option.
    monkeypatch.setattr(torch.distributed.run, "get_args_parser", argparse.ArgumentParser)
    assert understood(ARGUMENTS) == ["--nnodes=2", "--no-python", "python"]
