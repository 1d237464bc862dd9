"""`notify`: which causes of a pipeline are told to whom, by blocks of the Prefect server that hold the addresses."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from data_contracts.pipeline_spec.base import Section

Cause = Literal[
    "failed",
    "rejected",
    "waiting",
    "budget",
    "drift",
    "crashed",
    "not_resumed",
    "hung",
    "restarted",
    "stalled",
    "page",
    "ticket",
    "store_full",
    "not_promoted",
    "promoted",
    "canary",
    "rolled_back",
]
# Type and name of a block, as Prefect's pages write them.
_BLOCK = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*/[a-z0-9]+(-[a-z0-9]+)*")


def _block(text: str) -> str:
    if not _BLOCK.fullmatch(text):
        raise ValueError("must be the type and the name of a Prefect block, such as slack-webhook/team-sales")
    return text


def _each_once(causes: list[Cause]) -> list[Cause]:
    if twice := sorted({one for one in causes if causes.count(one) > 1}):
        raise ValueError(f"names {' and '.join(twice)} twice; name each cause once")
    return causes


class NotifyRule(Section):
    """Some causes, and the block through which people are told of them."""

    on: Annotated[list[Cause], AfterValidator(_each_once)] = Field(min_length=1)
    """What people are told of: `failed` (also if a run is not resumed), `rejected` by the contract, `waiting` for an
    approval, `budget` (a share is used up, or all), `drift`, `crashed` (its process died), `not_resumed`, `hung` (a
    rank), `restarted` (a training, also after a rank hung), `stalled` (a run waits for its store), `page` and
    `ticket` (the alerts of an objective), `store_full` (nine tenths of its disk), `not_promoted`, `promoted`, `canary`
    (a version stands beside the champion), `rolled_back`. Whatever is named, each block hears of dead processes of its
    pools, too."""
    block: Annotated[str, AfterValidator(_block)] = Field(max_length=200)
    """The block on the Prefect server, as `type/name`: `slack-webhook/team-sales`, `sendgrid-email/oncall`,
    `custom-webhook/pager` or another one that can notify, or `webhook/NAME`. It holds the address and its secrets."""
