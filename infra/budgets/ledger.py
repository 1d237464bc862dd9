"""The ledger of one budget in one period: executions of runs reserve before they use, and what they used is an entry.

The balance is a pointer, so concurrent executions cannot reserve the same rest. An entry is created once and then moved
into the balance in place of what was held; a process that dies in between leaves the hold, and whoever settles the
execution next ends the move. So nothing is counted twice and nothing is lost.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from data_contracts.canonical import digest
from data_contracts.costs.budgets import Balance, BudgetWarning, Hold, SpendingEntry
from infra.audit import now
from infra.store import Store, Versioned, layout
from infra.store.pointers import PointerMoved
from infra.store.records import parsed
from infra.store.store import read_several, write_several

# From so many executions on, all entries are listed at once, instead of a question for each.
LISTED = 8


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
