"""What happened: the moves of an alias, and of a run's training its checkpoints, logged values and logs.

Who moved an alias, when, why, and from which version to which. The checkpoints of a training are found by the run's own
records; nothing is trained, moved or verified. The values that it logged, step by step, are those that its checkpoint
holds (`training.checkpoint.saver` writes them), and the logs of its ranks are those that their nodes kept.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from data_contracts.alias_moves import Approval, CanaryNote, Force, Incident
from data_contracts.canonical import is_name
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import Checkpoint, Receipt
from infra.gang.ledger import Found, RankStatus, generation_records, list_checkpoints, roster
from infra.gang.ranks import kept_log
from infra.models import registry
from infra.records.receipts import is_rollback
from infra.store import Store, layout
from tasks.run.run import Run
from tasks.stages.trainings import begun_training, not_begun

Kind = Literal["promoted", "rolled back", "kept", "canary", "ended"]
Record = dict[str, object]


@dataclass(frozen=True)
class Move:
    """One receipt of an alias.

    Attributes:
        kind: `kept` if the alias stayed where it was, such as when a hold was lifted; `canary` and `ended` for the
            beginning and the end of a canary.
        before, after: the versions, `before` None for the first move.
        at: UTC, ISO 8601; by, trigger: the actor, and what started the run, as recorded.
        seal: of the receipt.
        incident: the note of a rollback; None for other moves, and for rollbacks of earlier versions.
        approval: of a promotion; None if none was asked for.
        force: why a checkpoint was promoted that was on hold; None if it was not.
        canary: of a canary's promotion and its end: its terms, and what the fresh rows said; None for other moves.
    """

    kind: Kind
    before: int | None
    after: int | None
    at: str
    by: str
    trigger: str
    run_id: str
    sentence: str
    seal: str
    incident: Incident | None
    approval: Approval | None
    force: Force | None
    canary: CanaryNote | None

    def to_json(self) -> dict[str, object]:
        """The move as objects that JSON can hold."""
        notes = {name: getattr(self, name) for name in ("incident", "approval", "force", "canary")}
        return {**asdict(self), **{name: note and note.to_json() for name, note in notes.items()}}


def moves_of(store: Store, model: str, alias: str = "") -> dict[str, list[Move]]:
    """The moves of an alias, or of each alias of a model: alias → moves, oldest first.

    Raises:
        UsageError: the model has no such alias, or none at all.
        CorruptError: a receipt is changed or gone.
    """
    names = (
        [alias] if alias else [one for one in store.list(layout.aliases(model)) if is_name(one) and one != "history"]
    )
    found = {name: [_move(*one) for one in registry.moves(store, model, name)] for name in names}
    found = {name: made for name, made in found.items() if made}
    if not found:
        what = f"no alias {alias}" if alias else "no alias"
        raise UsageError(f"The model {model} has {what}.", remedy="`trainwright status` lists models and aliases.")
    return found


def _move(receipt: Receipt, about: Mapping[str, object]) -> Move:
    kind: Kind = "kept" if receipt.version == receipt.previous else "promoted"
    if is_rollback(receipt):
        kind = "rolled back"
    if receipt.decision in ("canary", "ended"):
        kind = receipt.decision
    return Move(
        kind=kind,
        before=receipt.previous,
        after=receipt.version,
        at=str(about.get("finished") or about.get("started") or ""),
        by=str(about.get("actor") or ""),
        trigger=str(about.get("trigger") or ""),
        run_id=str(about.get("run_id") or ""),
        sentence=receipt.sentence,
        seal=receipt.ref.seal if receipt.ref else "",
        incident=receipt.incident,
        approval=receipt.approval,
        force=receipt.force,
        canary=receipt.canary,
    )


def logged_metrics(store: Store, checkpoint: Checkpoint) -> list[Record]:
    """One record per step that logged something: `{"step", "epoch", <metric>: value, …}`, oldest first."""
    return store.read_sealed_as(store.manifest(checkpoint.ref), "history.json", list)


def curves(records: list[Record]) -> dict[str, list[Record]]:
    """File name → one metric's records, each with the same keys: `step`, `epoch` and the metric's name.

    One table per metric, because they are logged at different steps and tools that plot want tables without gaps.
    """
    tables: dict[str, list[Record]] = {}
    for record in records:
        at: Record = {key: record[key] for key in ("step", "epoch") if key in record}
        for name in record.keys() - {"step", "epoch"}:
            file = re.sub(r"[^\w.=-]", "_", name).lstrip(".") + ".json"
            tables.setdefault(file, []).append({**at, name: record[name]})
    return dict(sorted(tables.items()))


def write_logger_files(store: Store, checkpoint: Checkpoint, folder: Path) -> None:
    """Write what the loggers of the training's config wrote, generation by generation, into `g<generation>/`."""
    for generation in range(checkpoint.generation + 1):
        path = layout.logger_files(checkpoint.training, generation)
        if not store.exists(path):
            continue
        try:
            with zipfile.ZipFile(io.BytesIO(store.read(path))) as archive:
                # It leads no member outside of the folder.
                archive.extractall(folder / f"g{generation}")
        except zipfile.BadZipFile as error:
            raise CorruptError(f"{path} in the store is damaged: {error}.") from error


def checkpoints_of(run: Run) -> tuple[str, list[Found]]:
    """The run's training and its checkpoints, oldest first; UsageError if it has not started training."""
    training = begun_training(run)
    return training, list_checkpoints(run.store, training)


@dataclass(frozen=True)
class RankLog:
    """A rank of a generation and the end of its log, or the part kept so far; None where no log was kept."""

    status: RankStatus
    text: str | None


def logs_of(run: Run, rank: int | None) -> tuple[str, list[RankLog]]:
    """The run's training and the logs of its newest generation that has any: of one rank, or of all.

    UsageError if the run has not begun to train, or has no such rank.
    """
    training = begun_training(run)
    statuses = roster(generation_records(run.store, training))
    if not statuses:
        raise not_begun(run)
    wanted = [status for status in statuses if rank in (None, status.rank)]
    if not wanted:
        raise UsageError(f"{training} has no rank {rank}; it has 0 to {max(status.rank or 0 for status in statuses)}.")
    newest_first = dict.fromkeys(status.generation for status in wanted)
    generations_logs = [
        [RankLog(status, _kept(run.store, training, status)) for status in wanted if status.generation == generation]
        for generation in newest_first
    ]
    return training, next(
        (one for one in generations_logs if any(rank_log.text is not None for rank_log in one)), generations_logs[0]
    )


def _kept(store: Store, training: str, status: RankStatus) -> str | None:
    return None if status.rank is None else kept_log(store, training, status.generation, status.node, status.rank)
