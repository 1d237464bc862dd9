"""The signing of an alias's move: before the alias moves, and after the move was won or lost.

The libraries are imported only if a key is configured or the receipts before are signed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from data_contracts.errors import Interrupted, UsageError
from data_contracts.handoffs import Ref
from infra.processes.environment import SIGNING_KEY
from infra.records.receipts import is_signed
from infra.signing.configured import configured_key
from infra.store import Store

if TYPE_CHECKING:
    from infra.signing.keys import SigningKey

log = logging.getLogger("trainwright")


@dataclass(frozen=True)
class MoveSigning:
    """What is done about the signatures of one move; nothing without a key."""

    store: Store
    key: SigningKey | None

    def before(self, receipt: Ref) -> None:
        """Sign the receipt, so that the alias never names one without a signature."""
        if self.key is not None:
            from infra.signing.signatures import sign_receipt

            sign_receipt(self.store, receipt, self.key)

    def lost(self, receipt: Ref) -> None:
        """Take the signatures back: the receipt must not pass for one that was made."""
        if self.key is not None:
            from infra.signing.signatures import withdraw

            withdraw(self.store, receipt)

    def won(self, receipt: Ref) -> None:
        """Delete the signatures of moves that followed the same receipt and were stopped before they were made.

        The move is made, whatever becomes of this: what is left makes no proof of the next move fail.
        """
        if self.key is not None:
            from infra.signing.signatures import withdraw_others

            try:
                withdraw_others(self.store, receipt)
            except Interrupted as error:
                log.warning("The alias moved, but the signatures of stopped moves were not deleted: %s", error.message)


def signing_of(store: Store, newest: Ref | None, what: str, key: SigningKey | None) -> MoveSigning:
    """How the next move of an alias is signed.

    Args:
        newest: the alias's newest receipt; `what`: the alias, for errors.
        key: default: the key that `TRAINWRIGHT_SIGNING_KEY` names.

    Raises:
        UsageError: the newest receipt is signed, and there is no key for the next one.
    """
    key = configured_key() if key is None else key
    if key is None and is_signed(store, newest):
        raise UsageError(
            f"{what} has signed receipts, and no key is configured to sign the next one.",
            remedy=f"Name the key: {SIGNING_KEY}=FILE, or promote.sign in the spec.",
        )
    return MoveSigning(store, key)
