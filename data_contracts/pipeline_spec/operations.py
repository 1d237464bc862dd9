"""Sections about a pipeline in operation: `schedule`, `notify` and `mirrors`.

`schedule` says how runs that nobody starts by hand, from a schedule or an event, go together. `notify` says which
causes of a pipeline are told to whom, by blocks of the Prefect server that hold the addresses. `mirrors` are systems
outside that are told of each run, after its verdict.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from data_contracts.pipeline_spec.base import FieldError, Section, each_once, is_none

Overlap = Literal["skip", "queue", "cancel_old"]
# Type and name of a block, as Prefect's pages write them.
_BLOCK = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*/[a-z0-9]+(-[a-z0-9]+)*")
_NAMED = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*")
_ADDRESS = re.compile(r"https?://[^/\s?#@]+(/[^\s?#@]*)?")
# Aliases that MLflow keeps for itself.
MLFLOW_RESERVED = re.compile(r"latest|v[0-9]+")
CREDENTIALS = ("username", "password", "token")


class SensorSpec(Section):
    """When data that arrives starts a run. The deployment `sensor/NAME` looks every five minutes."""

    settle_s: float = Field(default=30.0, ge=0, le=3600)
    """Seconds for which all new files must stand still: the same files, sizes and times in two looks; default 30."""
    done_file: str | None = None
    """A file's name, such as `_SUCCESS`: new files count only once their folder has this file; default: none."""

    @field_validator("done_file")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        if value is not None and (not value or any(sign in value for sign in "/\\*?[") or value in (".", "..")):
            raise ValueError(f"{value!r} is not the name of a file; write one such as _SUCCESS")
        return value


class ScheduleSpec(Section):
    """How runs that a schedule or an event starts go together; `trainwright deploy --cron` sets the times."""

    overlap: Overlap | None = None
    """What such a run does while an earlier run of the pipeline is unfinished: `skip` (it ends as Skipped), `queue`
    (it waits) or `cancel_old` (the earlier run is cancelled first, unless a person or CI started it); default: runs
    may overlap."""
    within: str | None = Field(default=None, exclude_if=is_none)
    """No effect since 2026-11-29: dropped; `trainwright deploy --cron` names the hour."""
    sensor: SensorSpec | None = Field(default=None, exclude_if=lambda sensor: sensor is None)
    """Starts a run when files of `data.source` are new or changed; default: no sensor."""


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


def _block(text: str) -> str:
    if not _BLOCK.fullmatch(text):
        raise ValueError("must be the type and the name of a Prefect block, such as slack-webhook/team-sales")
    return text


class NotifyRule(Section):
    """Some causes, and the block through which people are told of them."""

    on: Annotated[list[Cause], AfterValidator(each_once)] = Field(min_length=1)
    """What people are told of: `failed` (also if a run is not resumed), `rejected` by the contract, `waiting` for an
    approval, `budget` (a share is used up, or all), `drift`, `crashed` (its process died), `not_resumed`, `hung` (a
    rank), `restarted` (a training, also after a rank hung), `stalled` (a run waits for its store), `page` and
    `ticket` (the alerts of an objective), `store_full` (nine tenths of its disk), `not_promoted`, `promoted`,
    `rolled_back`; `canary` has had no effect since 2026-11-29. Whatever is named, each block hears of dead processes of
    its pools, too."""
    block: Annotated[str, AfterValidator(_block)] = Field(max_length=200)
    """The block on the Prefect server, as `type/name`: `slack-webhook/team-sales`, `sendgrid-email/oncall`,
    `custom-webhook/pager` or another one that can notify, or `webhook/NAME`. It holds the address and its secrets."""


def _named(text: str) -> str:
    if not _NAMED.fullmatch(text):
        raise ValueError("must name a credential (env:NAME), not hold one")
    if text.startswith("env:TRAINWRIGHT_"):  # such as the key that signs
        raise ValueError("names a variable of Trainwright's own, which no mirror gets")
    return text


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise ValueError("must be http://… or https://… without user, password and query")
    return text.rstrip("/")


Named = Annotated[str, AfterValidator(_named)]
Address = Annotated[str, AfterValidator(_address)]


class MlflowSpec(Section):
    """An MLflow tracking server, 2.0 or later."""

    uri: Address
    """Address of the server, such as `https://mlflow.example`."""
    experiment: str | None = Field(default=None, min_length=1, max_length=200, exclude_if=is_none)
    """The experiment; made if it does not exist; default: the pipeline's name."""
    username: Named | None = Field(default=None, exclude_if=is_none)
    """The environment variable that holds the user's name, as `env:NAME`; needs `password`."""
    password: Named | None = Field(default=None, exclude_if=is_none)
    """The environment variable that holds the password, as `env:NAME`."""
    token: Named | None = Field(default=None, exclude_if=is_none)
    """Instead of a user: the environment variable that holds a bearer token, as `env:NAME`."""
    model: bool = Field(default=True, exclude_if=bool)
    """Whether a promoted version's files are sent, so that MLflow's `load_model` opens it; default true."""

    @model_validator(mode="after")
    def _one_way(self) -> MlflowSpec:
        if (self.username is None) != (self.password is None):
            raise FieldError("password" if self.password is None else "username", "is missing; give both or neither")
        if self.token is not None and self.username is not None:
            raise FieldError("token", "and username exclude each other; leave one out")
        return self


class MirrorsSpec(Section):
    """Systems that are told of each run after its verdict. A mirror that fails changes no verdict; it is told again."""

    mlflow: MlflowSpec | None = Field(default=None, exclude_if=is_none)
    """Runs, and after a promotion the version and its alias, in MLflow; default: none."""
    openlineage: dict[str, str] | None = Field(default=None, exclude_if=is_none)
    """No effect since 2026-11-29: dropped; OpenLineage's own integrations send events of what they run."""
    gto: bool = Field(default=False, exclude_if=lambda one: not one)
    """No effect since 2026-11-29: dropped."""
    huggingface: dict[str, str] | None = Field(default=None, exclude_if=is_none)
    """No effect since 2026-11-29: dropped; `trainwright export --to huggingface` writes the same folder."""
    wait_s: float = Field(default=20.0, gt=0, le=3600, exclude_if=lambda one: one == 20.0)
    """How long the end of a run waits for all mirrors together, in seconds; default 20."""

    @property
    def credentials(self) -> dict[str, dict[str, str]]:
        """The credentials that mirrors are sent: by the mirror's address, the field that names each credential."""
        if self.mlflow is None:
            return {}
        named = {field: getattr(self.mlflow, field) for field in CREDENTIALS}
        return {self.mlflow.uri: {value: f"mirrors.mlflow.{field}" for field, value in named.items() if value}}

    @property
    def names(self) -> list[str]:
        """The mirrors that are asked for."""
        return ["mlflow"] if self.mlflow is not None else []

    def place(self, name: str) -> str:
        """The address of a mirror."""
        assert self.mlflow is not None, f"{name} is asked for"
        return self.mlflow.uri


def check_mirrors(mirrors: MirrorsSpec, alias: str) -> None:
    """FieldError for an alias that a mirror cannot have."""
    if mirrors.mlflow is not None and MLFLOW_RESERVED.fullmatch(alias):
        raise FieldError(("promote", "alias"), f"{alias!r} is a name that MLflow keeps for itself; choose another")
