"""The base of every message."""

from __future__ import annotations

from pydantic import ConfigDict

from data_contracts.handoffs import HandOff


class Message(HandOff):
    """A frozen record that one process writes and another reads. Each has a golden file under tests/golden/messages."""

    # An infinity in a user's settings stays one; by default pydantic would write None.
    model_config = ConfigDict(ser_json_inf_nan="constants")
