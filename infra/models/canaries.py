"""Canaries in the store: which one stands under a model's alias `canary`, what was observed of it, and how it ended.

    canaries/<model>/<k>/end.json                     how it ended
                         nights/<champion>/<n>.json   batch n beside a version, of rows that no batch before it has
                         asks/<champion>.json         the run that asks for an approval
                         rows/<id>                    digests of rows, or `<id>-<i>` if they are many
                         seen/<dataset>.json          which of these files has the rows of a dataset

`k` is the number of the receipt by which the canary began. Each file is created once. The number of a batch is what two
runs at once agree by: the one that comes second counts the rows of the first as observed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_contracts.alias_moves import ALIAS, CanaryAsk, CanaryEnd, CanaryTerms, ObservationBatch
from data_contracts.canonical import readable
from data_contracts.errors import CorruptError, UsageError
from data_contracts.handoffs import ModelVersion, Receipt, Ref
from infra.approvals import latest_question
from infra.audit import now
from infra.models import registry
from infra.records.receipts import chain, has_ended, read_receipt
from infra.store import Store, Versioned, layout
from infra.store.records import corrupt
from infra.store.store import numbers

Digests = NDArray[np.uint64]
_ID_LENGTH = 40
# Digests in one file: a file of a store is read as a whole, and must not be larger than 256 MiB.
MOST_IN_FILE = 2**24


@dataclass(frozen=True)
class Canary:
    """A version that stands under the alias `canary`, or stood there and its alias has not followed yet.

    Attributes:
        k: number of the receipt by which it began.
        pointer: the alias, as a move expects it.
        receipt: by which it began.
    """

    model: str
    k: int
    pointer: Versioned
    version: ModelVersion
    receipt: Receipt

    @property
    def terms(self) -> CanaryTerms:
        """What was agreed when it began."""
        assert self.receipt.terms is not None
        return self.receipt.terms

    @property
    def name(self) -> str:
        """The alias that it moves to if it is shown to be better."""
        return f"{self.model}@{self.terms.alias}"

    @property
    def seal(self) -> str:
        """Of the receipt by which it began: what tells two canaries apart."""
        assert self.receipt.ref is not None
        return self.receipt.ref.seal


def standing_canary(store: Store, model: str) -> Canary | None:
    """The canary that the alias names; None if it names none.

    UsageError if something else than `promote.canary` moved the alias. CorruptError if a receipt is changed or gone.
    """
    found = registry.read_alias(store, model, ALIAS)
    if found is None or has_ended(found[0]):
        return None
    begun = _begun(store, found[0])
    if begun is None:
        raise UsageError(
            f"{model}@{ALIAS} names version {found[1]}, which promote.canary did not put there.",
            remedy=f"`trainwright history {model}@{ALIAS}` tells who; `trainwright canary {model} --withdraw --reason "
            "WHY` frees the alias.",
        )
    version = registry.model_version(store, Ref.model_validate(found[0].value["model_version"]))
    assert begun.ref is not None
    return Canary(model, int(begun.ref.uri.rpartition("/")[2]), found[0], version, begun)


def is_of_canaries(store: Store, current: Versioned) -> bool:
    """Whether an alias was moved by a canary's beginning or end, and by nobody since."""
    return has_ended(current) or _begun(store, current) is not None


def _begun(store: Store, current: Versioned) -> Receipt | None:
    for manifest in chain(store, Ref.model_validate(current.value["receipt"]), store.verify):
        receipt = read_receipt(store, manifest)
        if receipt.decision == "canary" and receipt.terms is not None:
            return receipt
        if receipt.decision != "unchanged":  # as when a hold is lifted
            return None
    return None


def end_of(store: Store, canary: Canary) -> CanaryEnd | None:
    """How a canary ended; None while it stands, or while nobody has noticed that its window is over."""
    return store.find_as(layout.canary_end(canary.model, canary.k), CanaryEnd.from_json)


def end(store: Store, canary: Canary, ending: CanaryEnd) -> CanaryEnd:
    """End a canary; returns the end that counts: this one, or the one that was there before."""
    path = layout.canary_end(canary.model, canary.k)
    return ending if store.create_once(path, ending.to_json()) else store.read_as(path, CanaryEnd.from_json)


def ending(canary: Canary, end: CanaryEnd, failed: str = "") -> str:
    """How a canary ended, as a sentence."""
    how = "was promoted" if end.outcome == "promoted" and not failed else "was withdrawn"
    more = f", but {failed}" if failed else ""
    return f"{canary.model}@{ALIAS}, version {canary.version.version}, {how}: {end.reason}{more}"


def why_over(store: Store, canary: Canary, champion: int) -> str:
    """Why a canary does not stand any more, as a sentence, whatever its alias says; "" if it stands."""
    end = end_of(store, canary)
    if end is not None:
        return ending(canary, end)
    ask = ask_of(store, canary, champion)
    asked = ask is not None and latest_question(store, ask.run_id) is not None
    if asked or not canary.terms.is_over(now()):
        return ""
    number = canary.version.version
    return f"{canary.model}@{ALIAS}, version {number}, is withdrawn: its window ended at {readable(canary.terms.until)}"


def refuse_ended(store: Store, model: str) -> None:
    """UsageError, for whoever wants to use the alias `canary`, if a canary stood there and does not any more."""
    found = registry.read_alias(store, model, ALIAS)
    if found is None or not is_of_canaries(store, found[0]):
        return
    canary = standing_canary(store, model)
    over = f"{model} has no canary; version {found[1]} was the last" if canary is None else ""
    if canary is not None:
        champion = registry.read_alias(store, model, canary.terms.alias)
        over = why_over(store, canary, canary.terms.against if champion is None else champion[1])
    if over:
        raise UsageError(f"{over.rstrip('.')}.", remedy=f"Name a version: {model}@{found[1]}.")


def ask_of(store: Store, canary: Canary, champion: int) -> CanaryAsk | None:
    """Which run asks whether a canary may replace a version; None if none does."""
    return store.find_as(layout.canary_ask(canary.model, canary.k, champion), CanaryAsk.from_json)


def ask(store: Store, canary: Canary, champion: int, request: CanaryAsk) -> CanaryAsk:
    """Let a run ask; returns which run asks: this one, or the one that was there before."""
    path = layout.canary_ask(canary.model, canary.k, champion)
    return request if store.create_once(path, request.to_json()) else store.read_as(path, CanaryAsk.from_json)


def observation_batches(store: Store, canary: Canary, champion: int) -> list[ObservationBatch]:
    """The observation batches of a canary beside a version, oldest first; CorruptError if one is damaged or missing."""
    folder = layout.canary_batches(canary.model, canary.k, champion)
    count = 1 + max(numbers(store, folder), default=-1)
    try:
        return [_read_batch(store, layout.canary_batch(canary.model, canary.k, champion, n)) for n in range(count)]
    except CorruptError as error:
        remedy = f"Take the canary back: `trainwright canary {canary.model} --withdraw --reason WHY`."
        raise CorruptError(error.message, remedy=remedy, details=error.details) from error


def _read_batch(store: Store, path: str) -> ObservationBatch:
    found = store.find_as(path, ObservationBatch.from_json)
    if found is None:
        raise corrupt(path, "is missing, although there is a later one")
    return found


def add_batch(store: Store, canary: Canary, champion: int, n: int, batch: ObservationBatch) -> bool:
    """Store batch `n`; False if another process took this number."""
    return store.create_once(layout.canary_batch(canary.model, canary.k, champion, n), batch.to_json())


def ascending(digests: Digests) -> Digests:
    """The different digests, ascending; sorting is several times as fast as `np.unique` is for millions."""
    found = np.sort(digests)
    return found[np.concatenate([np.ones(1, bool), found[1:] != found[:-1]])] if len(found) else found


def put_rows(store: Store, canary: Canary, digests: Digests) -> str:
    """Store the digests (rows,) of rows; returns the id that `read_rows` takes."""
    found = ascending(digests).astype("<u8")
    rows_id = hashlib.sha256(found.data).hexdigest()[:_ID_LENGTH]
    files = max(1, -(-len(found) // MOST_IN_FILE))
    rows_id = rows_id if files == 1 else f"{files}-{rows_id}"
    for number, name in enumerate(_files(rows_id, files)):
        part = found[number * MOST_IN_FILE : (number + 1) * MOST_IN_FILE]
        store.create_once(layout.canary_rows(canary.model, canary.k, name), part.tobytes())
    return rows_id


def read_rows(store: Store, canary: Canary, rows_id: str) -> Digests:
    """The different digests (≤ rows,) that were stored, ascending; CorruptError if they are not those or are gone."""
    path = layout.canary_rows(canary.model, canary.k, rows_id)
    count, _, whole = rows_id.rpartition("-")
    if count and not (count.isdecimal() and len(count) < 6):
        raise corrupt(path, "is not a name of rows")
    parts: list[bytes] = []
    for name in _files(rows_id, int(count or 1)):
        path = layout.canary_rows(canary.model, canary.k, name)
        try:
            parts.append(store.read(path))
        except FileNotFoundError as error:
            raise corrupt(path, "is missing") from error
    data = b"".join(parts)
    if hashlib.sha256(data).hexdigest()[:_ID_LENGTH] != whole or len(data) % 8:
        raise corrupt(path, "is not what was written")
    return np.frombuffer(data, "<u8").astype(np.uint64)


def _files(rows_id: str, count: int) -> list[str]:
    return [rows_id] if count == 1 else [f"{rows_id}-{number}" for number in range(count)]


def seen_digests(store: Store, canary: Canary, dataset_id: str) -> Digests | None:
    """The digests of all rows of a dataset, if they were stored; None if not."""
    path = layout.canary_seen(canary.model, canary.k, dataset_id[:_ID_LENGTH])

    def rows_id(value: Any) -> str:
        if value["dataset"] != dataset_id:
            raise ValueError("it is about another dataset")
        return str(value["rows"])

    found = store.find_as(path, rows_id)
    return None if found is None else read_rows(store, canary, found)


def put_seen(store: Store, canary: Canary, dataset_id: str, digests: Digests) -> None:
    """Store the digests of all rows of a dataset, so that they are not computed again."""
    value = {"dataset": dataset_id, "rows": put_rows(store, canary, digests)}
    store.create_once(layout.canary_seen(canary.model, canary.k, dataset_id[:_ID_LENGTH]), value)
