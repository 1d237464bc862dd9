"""Budgets and the policy on tags, as a store keeps them: their versions, and a ledger for each budget and period.

Each version is created once and kept; the newest holds. They lie in the store, so a spec cannot leave them out. With a
release key they are signed, and a process that has the key takes no version that the key did not sign. A spec's tags
must be those that the policies of the store and of this machine's environment demand: a spec may name another store,
which has another policy, but the environment of a work pool holds for all of them.

Executions of runs reserve before they use, and what they used is an entry in the ledger. The balance is a pointer, so
concurrent executions cannot reserve the same rest. An entry is created once and then moved into the balance in place of
what was held; a process that dies in between leaves the hold, and whoever settles the execution next ends the move. So
nothing is counted twice and nothing is lost.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from data_contracts.canonical import canonical, digest
from data_contracts.errors import CorruptError, SpecError, UsageError
from data_contracts.pipeline_spec import PipelineSpec
from data_contracts.rules import (
    RULES_TYPE,
    VERSION,
    Balance,
    Budgets,
    BudgetWarning,
    Hold,
    Kind,
    Objectives,
    Policy,
    RulesVersion,
    SpendingEntry,
    is_visible,
)
from data_contracts.yaml_text import Problem, read_document
from infra.audit import actor, now
from infra.prices import mistaken, validated
from infra.processes.environment import SIGNING_KEY
from infra.signing.keys import PublicKey, signature_fault, signed_record, unverified_payload
from infra.signing.signatures import configured_key
from infra.store import Store, Versioned, layout
from infra.store.records import PointerMoved, parsed
from infra.store.store import read_several, write_several

log = logging.getLogger("trainwright")
F = TypeVar("F", Budgets, Policy, Objectives)
# A file with the policy of this machine.
POLICY = "TRAINWRIGHT_POLICY"
# From so many executions on, all entries are listed at once, instead of a question for each.
LISTED = 8


def read_rules(path: Path, model: type[F]) -> F:
    """The file as `model`; UsageError with `file:line: field: what` for each mistake."""
    document = read_document(path, model.called, f"write it as {model.shown_in} shows")
    rules = validated(document, model, VERSION)
    if isinstance(rules, Policy) and (wrong := _without_values(rules)):
        raise mistaken(document, wrong)
    return rules


def _without_values(policy: Policy) -> list[Problem]:
    """Tags that no spec could have. A store may have such a policy of an earlier version, which still opens."""
    sentence = "allows no value, so it would refuse every spec; name values, or write any"
    wrong = [Problem(("tags", name), sentence) for name, allowed in policy.tags.items() if not allowed]
    wrong += [
        Problem(("tags", name, number), "is empty, and a tag needs a value that can be seen")
        for name, allowed in policy.tags.items()
        if allowed != "any"
        for number, value in enumerate(allowed)
        if not is_visible(value)
    ]
    return wrong


def newest_rules(store: Store, kind: Kind) -> RulesVersion | None:
    """The version that holds; None if there is none.

    It is the last before a gap, so a file that somebody puts under a high number does not block the budgets. By making
    a gap, a writer of the store achieves no more than by deleting the newest versions.

    CorruptError if it is damaged, the first one is missing, or this process has a key that did not sign it.
    """
    numbers = _numbers(store, kind)
    if not numbers:
        return None
    newest = _last_before_gap(numbers)
    if newest is None:
        path = layout.rules_version(kind, numbers[0])
        raise CorruptError(f"A version before {path} is missing.", details={"file": path})
    if newest != numbers[-1]:
        beyond = layout.rules_version(kind, numbers[newest + 1])
        log.warning("%s does not count: no version %d is before it.", beyond, newest + 1)
    found = _version(store, kind, newest)
    key, path = configured_key(), layout.rules_version(kind, newest)
    if key is not None and (why := _fault(store, found, key.public)):
        raise CorruptError(
            f"The release key does not vouch for {path}: {why}.",
            remedy=f"Apply it again with the key: `trainwright {command_of(kind)} apply FILE`.",
            details={"file": path},
        )
    return found


def current_budgets(store: Store) -> Budgets | None:
    """The budgets that hold; None if there are none. CorruptError as `newest_rules`."""
    newest = newest_rules(store, "budgets")
    if newest is None:
        return None
    return parsed(layout.rules_version("budgets", newest.n), Budgets.model_validate, newest.content)


def apply_rules(store: Store, kind: Kind, content: dict[str, object]) -> RulesVersion:
    """Store a version as the newest, signed if this process has a release key.

    UsageError if there is no key and a version is signed.
    """
    key = configured_key()
    while True:
        numbers = _numbers(store, kind)
        newest = _last_before_gap(numbers)
        n = 0 if newest is None else newest + 1
        path = None if key is not None else _newest_signed(store, kind, numbers)
        if path is not None:
            raise UsageError(
                f"The {kind} of this store are signed ({path}), and no key is configured to sign the next version.",
                remedy=f"Name the release key: {SIGNING_KEY}=FILE; if nobody of yours signed it, delete that file.",
            )
        made = RulesVersion(kind=kind, n=n, content=content, by=actor(), at=now())
        made = made if key is None else signed_record(made.model_copy(update={"store": store.uri}), RULES_TYPE, key)
        # If it closes a gap, versions that did not count are newer than it: then it is made once more after them.
        if store.create_once(layout.rules_version(kind, n), made.to_json()) and n + 1 not in numbers:
            return made


def _newest_signed(store: Store, kind: Kind, numbers: list[int]) -> str | None:
    """The newest version that somebody signed; None if there is none.

    What is not a signature of its version, such as damage, keeps nobody from applying.
    """
    for n in reversed(numbers):
        path = layout.rules_version(kind, n)
        with contextlib.suppress(CorruptError):
            found = store.read_as(path, RulesVersion.from_json)
            signature = found.signature
            if signature is not None and unverified_payload(canonical(signature), path)[0] == found.signed_bytes:
                return path
    return None


def command_of(kind: Kind) -> str:
    """The command that applies it."""
    return "budget" if kind == "budgets" else "policy"


def _version(store: Store, kind: Kind, n: int) -> RulesVersion:
    path = layout.rules_version(kind, n)
    found = store.read_as(path, RulesVersion.from_json)
    if (found.kind, found.n) != (kind, n):
        raise CorruptError(f"{path} is version {found.n} of the {found.kind}.", details={"file": path})
    return found


def _fault(store: Store, version: RulesVersion, key: PublicKey) -> str:
    """Why a version does not count for a process with this key, as the end of a sentence; "" if it does.

    Earlier Trainwrights did not sign the store's address. Such a version counts until the key has signed one with it.
    """
    if why := signature_fault(version, RULES_TYPE, key, "the version"):
        return why
    if version.store is not None:
        return "" if version.store == store.uri else f"it is for the store {version.store}, and this is {store.uri}"
    for n in reversed(range(version.n)):
        with contextlib.suppress(CorruptError):  # an earlier version that is damaged keeps no later one from counting
            earlier = _version(store, version.kind, n)
            if earlier.store is not None and not signature_fault(earlier, RULES_TYPE, key, "the version"):
                return "it names no store, and an earlier version does"
    return ""


def _last_before_gap(numbers: list[int]) -> int | None:
    """The last of the numbers from 0 that are all there; None if 0 is not."""
    return next((n for n, one in enumerate([*numbers, -1]) if one != n), 0) - 1 if numbers[:1] == [0] else None


def _numbers(store: Store, kind: Kind) -> list[int]:
    names = [name.removesuffix(".json") for name in store.list(layout.rules_versions(kind))]
    # `007` was not made by Trainwright, and its path is not that of version 7.
    return sorted(int(name) for name in names if re.fullmatch("0|[1-9][0-9]*", name))


def refuse_by_policy(spec: PipelineSpec, path: Path, store: Store | None = None) -> None:
    """SpecError, with the field, for the first tag that a policy demands and the spec does not have so.

    Args:
        path: of the spec, for the sentence.
        store: whose policy holds, too; None: only that of the environment.
    """
    for policy, where in _policies(store):
        if (fault := policy.fault(spec.tags)) is not None:
            name, why = fault
            what = "Correct the tag" if name in spec.tags else f"Add tags.{name} to the spec"
            raise SpecError(
                f"{path}: tags.{name}: {why}.",
                remedy=f"{what}; the policy is {where}.",
                details={"errors": [{"field": f"tags.{name}", "sentence": why}]},
            )


def _policies(store: Store | None) -> Iterator[tuple[Policy, str]]:
    if named := os.environ.get(POLICY):
        yield read_rules(Path(named), Policy), f"the file {named} ({POLICY})"
    if store is not None and (newest := newest_rules(store, "policy")) is not None:
        where = layout.rules_version("policy", newest.n)
        yield parsed(where, Policy.model_validate, newest.content), f"{where} in {store.uri}, of {newest.by}"


@dataclass(frozen=True)
class Executed:
    """An execution of a run, as usage records name it."""

    run_id: str
    execution: str

    @property
    def key(self) -> str:
        """Its name in a ledger."""
        return f"{self.run_id}.{self.execution}"


class Ledger:
    """The ledger of the budget `name` in `period`; `scope` is the digest of what it counts, in `unit`."""

    def __init__(self, store: Store, name: str, scope: str, period: str, unit: str) -> None:
        self._store, self._place = store, (name, scope, period)
        self.name, self.period, self.unit = name, period, unit
        self._path = layout.balance(*self._place)
        self._pointer = store.pointer(self._path)

    def balance(self) -> Balance:
        """What was used and what is held; CorruptError if a record is damaged."""
        return self._read()[1]

    def reserve(self, who: Executed, used: float, ahead: float, limit: float | None) -> tuple[float, Balance]:
        """Hold what an execution has used so far, and `ahead` on top as far as the limit permits.

        Returns:
            How much is held on top of `used`, and the balance. An execution that was settled already holds nothing.
        """
        while True:
            current, balance = self._read()
            others = balance.spent + sum(hold.amount for key, hold in balance.holds.items() if key != who.key)
            if who.key not in balance.holds and self.is_settled(who):
                return 0.0, balance
            wanted = used + ahead
            amount = max(used, wanted if limit is None else min(wanted, limit - others))
            hold = Hold(run_id=who.run_id, execution=who.execution, amount=amount)
            if balance.holds.get(who.key) == hold:
                return amount - used, balance
            changed = Balance(spent=balance.spent, holds={**balance.holds, who.key: hold})
            if self._swap(current, changed):
                return amount - used, changed

    def settle(self, used: Mapping[Executed, float]) -> None:
        """Replace what executions hold by what they used in the end; repeated calls change nothing.

        However many they are, the balance changes twice: all of them hold what they used, then it is moved.
        """
        while True:
            current, balance = self._read()
            settled = self._settled(used)  # after the balance was read: another process may have settled some meanwhile
            new = [who for who in used if who not in settled and who.key not in balance.holds]
            holds = {one.key: Hold(run_id=one.run_id, execution=one.execution, amount=used[one]) for one in new}
            if not new or self._swap(current, Balance(spent=balance.spent, holds={**balance.holds, **holds})):
                break
        write_several(self._enter, [(who, amount) for who, amount in used.items() if who not in settled])
        self._fold(used)

    def _settled(self, among: Collection[Executed]) -> set[Executed]:
        if len(among) < LISTED:
            return {who for who in among if self.is_settled(who)}
        names = set(self._store.list(layout.entries(*self._place)))
        return {who for who in among if f"{who.key}.json" in names}

    def _enter(self, item: tuple[Executed, float]) -> None:
        """Create the entry of an execution, unless there is one."""
        who, amount = item
        entry = SpendingEntry(
            budget=self.name,
            period=self.period,
            run_id=who.run_id,
            execution=who.execution,
            amount=amount,
            unit=self.unit,
            at=now(),
        )
        self._store.create_once(layout.entry(*self._place, who.key), entry.to_json())

    def is_settled(self, who: Executed) -> bool:
        """Whether there is an entry of an execution."""
        return self._store.exists(layout.entry(*self._place, who.key))

    def warn_once(self, warning: BudgetWarning) -> bool:
        """Record that a share of a limit was reached; returns whether this call did."""
        # A raised limit has shares of its own.
        name = digest([warning.share, warning.limit])[:16]
        return self._store.create_once(layout.warning(*self._place, name), warning.to_json())

    def entries(self) -> list[SpendingEntry]:
        """What each ended execution used."""
        names = self._store.list(layout.entries(*self._place))
        paths = [layout.entry(*self._place, name.removesuffix(".json")) for name in names]
        return [self._store.read_as(path, SpendingEntry.from_json) for path in paths]

    def _fold(self, settled: Collection[Executed]) -> None:
        """Move entries into the balance, in place of their holds."""
        while True:
            current, balance = self._read()
            mine = [who.key for who in settled if who.key in balance.holds]
            if not mine:
                return
            paths = [layout.entry(*self._place, key) for key in mine]
            entries = read_several(self._store, lambda path: self._store.read_as(path, SpendingEntry.from_json), paths)
            rest = {key: hold for key, hold in balance.holds.items() if key not in set(mine)}
            if self._swap(current, Balance(spent=balance.spent + sum(one.amount for one in entries), holds=rest)):
                return

    def _read(self) -> tuple[Versioned | None, Balance]:
        current = self._pointer.read()
        if current is None:  # none yet; or it was deleted, and the entries know what was used
            return None, Balance(spent=sum(entry.amount for entry in self.entries()))
        return current, parsed(self._path, Balance.model_validate, current.value)

    def _swap(self, current: Versioned | None, balance: Balance) -> bool:
        try:
            self._pointer.swap(current, balance.to_json())
        except PointerMoved:
            time.sleep(random.uniform(0, 0.02))
            return False
        return True
