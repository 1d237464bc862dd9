"""The messages between our processes, as types, and the base of every message.

A message is written as JSON with a schema number and read back into the same type; nobody reads a key of a message.
Content that is the user's (a Lightning config, a spec's section) stays a dictionary inside it. What stages hand to each
other and what the store keeps of a run are in `data_contracts.handoffs`.
"""

from __future__ import annotations

from pydantic import ConfigDict

from data_contracts.handoffs import HandOff


class Message(HandOff):
    """A frozen record that one process writes and another reads. Each has a golden file under tests/golden/messages."""

    # An infinity in a user's settings stays one; by default pydantic would write None.
    model_config = ConfigDict(ser_json_inf_nan="constants")
