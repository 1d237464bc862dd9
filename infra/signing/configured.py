"""Which key this process signs with: the spec names it (`promote.sign`), or `TRAINWRIGHT_SIGNING_KEY` does.

The libraries are imported only if a key is configured.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from data_contracts.errors import UsageError
from infra.processes.environment import SIGNING_KEY

if TYPE_CHECKING:
    from infra.signing.keys import SigningKey


def configured_key(named: str | None = None, root: Path = Path()) -> SigningKey | None:
    """The key to sign with; None if none is configured.

    Args:
        named: `promote.sign` of the spec in the folder `root`, if there is a spec that names a key.

    Raises:
        UsageError: the key cannot be used, or the spec and the variable name two keys.
    """
    variable = f"env:{SIGNING_KEY}" if os.environ.get(SIGNING_KEY, "").strip() else None
    if named is None and variable is None:
        return None
    from infra.signing.keys import load_signing_key

    if named is None:
        return _for_models(load_signing_key(f"env:{SIGNING_KEY}", Path.cwd(), SIGNING_KEY), SIGNING_KEY)
    key = _for_models(load_signing_key(named, root, "promote.sign"), "promote.sign")
    if variable is not None and named != variable:
        other = load_signing_key(variable, Path.cwd(), SIGNING_KEY)
        if other.public.id != key.public.id:
            raise UsageError(
                f"Two signers: promote.sign names the key {key.public.id[:16]}…, {SIGNING_KEY} the key "
                f"{other.public.id[:16]}….",
                remedy=f"Unset {SIGNING_KEY}, or leave promote.sign out.",
            )
    return key


def _for_models(key: SigningKey, what: str) -> SigningKey:
    if not key.public.is_elliptic:
        raise UsageError(
            f"{what} names a key with Ed25519, and OpenSSF's format for a model's files has no such keys.",
            remedy="Use an ECDSA key on P-256: `trainwright key new DIR`.",
        )
    return key
