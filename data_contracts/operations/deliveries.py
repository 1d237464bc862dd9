"""The record of one attempt to send a mirror an update about a run or an alias."""

from __future__ import annotations

from data_contracts.records import HandOff


class Delivery(HandOff):
    """One attempt.

    Attributes:
        delivered: whether the mirror has all of it now.
        sentence: what was done, or why it failed; without secrets and without values of the data.
        at: the time (UTC, ISO 8601).
    """

    delivered: bool
    sentence: str
    at: str
