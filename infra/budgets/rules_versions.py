"""Versions of a store's budgets and of its policy: each created once and kept; the newest holds.

They lie in the store, so a spec cannot leave them out. With a release key they are signed, and a process that has the
key takes no version that the key did not sign.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from typing import TYPE_CHECKING, Any

from data_contracts.canonical import canonical
from data_contracts.costs.budgets import RULES_TYPE, Budgets, Kind, RulesVersion
from data_contracts.errors import CorruptError, UsageError
from infra.audit import actor, now
from infra.processes.environment import SIGNING_KEY
from infra.signing.configured import configured_key
from infra.store import Store, layout
from infra.store.records import parsed

if TYPE_CHECKING:
    from infra.signing.keys import PublicKey, SigningKey


log = logging.getLogger("trainwright")


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


def apply_rules(store: Store, kind: Kind, content: dict[str, Any]) -> RulesVersion:
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
        made = made if key is None else _signed(made.model_copy(update={"store": store.uri}), key)
        # If it closes a gap, versions that did not count are newer than it: then it is made once more after them.
        if store.create_once(layout.rules_version(kind, n), made.to_json()) and n + 1 not in numbers:
            return made


def _newest_signed(store: Store, kind: Kind, numbers: list[int]) -> str | None:
    """The newest version that somebody signed; None if there is none.

    What is not a signature of its version, such as damage, keeps nobody from applying.
    """
    from infra.signing.envelopes import unverified_payload

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


def _signed(version: RulesVersion, key: SigningKey) -> RulesVersion:
    from infra.signing.envelopes import sign_bytes

    signature = json.loads(sign_bytes(version.signed_bytes, RULES_TYPE, key))
    return version.model_copy(update={"signature": signature})


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
    if why := _signature_fault(version, key):
        return why
    if version.store is not None:
        return "" if version.store == store.uri else f"it is for the store {version.store}, and this is {store.uri}"
    for n in reversed(range(version.n)):
        with contextlib.suppress(CorruptError):  # an earlier version that is damaged keeps no later one from counting
            earlier = _version(store, version.kind, n)
            if earlier.store is not None and not _signature_fault(earlier, key):
                return "it names no store, and an earlier version does"
    return ""


def _signature_fault(version: RulesVersion, key: PublicKey) -> str:
    if version.signature is None:
        return "it is not signed"
    from infra.signing.envelopes import verify

    try:
        found = verify(canonical(version.signature), RULES_TYPE, [key], "the version")
    except CorruptError as error:
        return error.message.rstrip(".")
    return "" if found.payload == version.signed_bytes else "it is not what was signed"


def _last_before_gap(numbers: list[int]) -> int | None:
    """The last of the numbers from 0 that are all there; None if 0 is not."""
    return next((n for n, one in enumerate([*numbers, -1]) if one != n), 0) - 1 if numbers[:1] == [0] else None


def _numbers(store: Store, kind: Kind) -> list[int]:
    names = [name.removesuffix(".json") for name in store.list(layout.rules_versions(kind))]
    # `007` was not made by Trainwright, and its path is not that of version 7.
    return sorted(int(name) for name in names if re.fullmatch("0|[1-9][0-9]*", name))
