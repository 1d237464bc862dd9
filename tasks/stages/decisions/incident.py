"""The note of a rollback: it says that the older version is complete, and what was known of both versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from data_contracts.alias_moves import Incident, VersionFacts
from data_contracts.errors import CorruptError
from data_contracts.handoffs import Evaluation, ModelVersion, Receipt
from infra.records.handoffs import read_handoff
from infra.records.receipts import is_rollback
from infra.store import Store

Moves = Sequence[tuple[Receipt, dict[str, Any]]]


def read_again(store: Store, version: ModelVersion, *, stays: str) -> tuple[int, int]:
    """Number and bytes of the files of a version's checkpoint; CorruptError if one is not as sealed, or all are gone.

    Args:
        stays: what did not happen then, as the end of a sentence.
    """
    ref = version.checkpoint.ref
    try:
        files = store.verify(ref).files
    except FileNotFoundError as error:
        raise CorruptError(
            f"The checkpoint {ref.uri} of version {version.version} is missing; {stays}.",
            remedy="Go back to another version with --to.",
            details={"file": ref.uri},
        ) from error
    return len(files), sum(one.bytes for one in files)


def noted(store: Store, left: ModelVersion, back: ModelVersion, moves: Moves, read: tuple[int, int]) -> Incident:
    """The note of a rollback, without a person's words.

    Args:
        moves: of the alias so far, oldest first.
        read: number and bytes of the files of `back` that were read again.
    """
    files, num_bytes = read
    left_facts, back_facts = _facts(store, left, moves), _facts(store, back, moves)
    return Incident(left=left_facts, back=back_facts, checked_files=files, checked_bytes=num_bytes)


def _facts(store: Store, version: ModelVersion, moves: Moves) -> VersionFacts:
    came = [(one, about) for one, about in moves if one.version == version.version and one.previous != one.version]
    about = came[-1][1] if came else {}
    promoted = [one for one, _ in came if not is_rollback(one)]
    try:
        metrics = read_handoff(store, version.evaluation, Evaluation).metrics
    except CorruptError:  # a rollback must not wait until old scores can be read
        metrics = {}
    return VersionFacts(
        version=version.version,
        since=str(about.get("finished") or about.get("started") or ""),
        by=str(about.get("actor") or ""),
        run_id=str(about.get("run_id") or ""),
        metrics={name: one.value for name, one in metrics.items()},
        gates=[gate.sentence for gate in promoted[-1].gates] if promoted else [],
    )
