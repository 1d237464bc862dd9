"""Whose signed answers count for a promotion: by keys of the spec, of the alias's protection, or of both.

The spec belongs to its owner, but the store does not. Keys in the store count only if the release key signed them, if
the spec names them too, or if there is neither a release key nor a spec that names keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from data_contracts.approvals import Protection
from data_contracts.errors import UsageError
from infra.approvals import Approvers, keys_of, protections, refuse_forged, refuse_gone
from infra.models import registry
from infra.signing.moves import configured_key
from tasks.run.run import Run

if TYPE_CHECKING:
    from infra.signing.keys import PublicKey


def named_approvers(run: Run) -> dict[str, PublicKey | None]:
    """The keys that `promote.approvers` names by their ids, None for a key of which only the id is known.

    UsageError if a file cannot be read, is not a public key, or can be written by anyone.
    """
    found: dict[str, PublicKey | None] = {}
    for named in run.spec.promote.approvers:
        if not named.startswith("file:"):
            found.setdefault(named, None)
            continue
        from infra.signing.keys import load_trusted_key

        key = load_trusted_key(run.root, named.removeprefix("file:"), "promote.approvers")
        found[key.id] = key
    return found


def standing_protection(run: Run) -> tuple[Protection | None, bool]:
    """The protection of the run's alias, None if it is not protected, and whether the release key vouches for it.

    CorruptError if a decision is gone, or is not signed as it must be.
    """
    store, model, alias = run.store, run.spec.model_name, run.spec.promote.alias
    found = protections(store, model, alias)
    current = registry.read_alias(store, model, alias)
    refuse_gone(store, found, registry.newest_receipt(current and current[0]), f"{model}@{alias}")
    key = configured_key(run.spec.promote.sign, run.root) if found else None
    vouched = refuse_forged(found, None if key is None else key.public, named=bool(run.spec.promote.approvers))
    return (found[-1] if found and found[-1].protected else None), vouched


def approvers_of(run: Run) -> Approvers:
    """Whose signed answers count for this run; without keys, any answer does.

    Raises:
        UsageError: a key that the spec names cannot be used, or no key could approve.
        CorruptError: as `standing_protection`.
    """
    protected, vouched = standing_protection(run)
    named, stored = named_approvers(run), keys_of(protected)
    name = f"{run.spec.model_name}@{run.spec.promote.alias}"
    if not named:
        return Approvers(name, stored, "protection" if stored and vouched else "")
    both = {id: key or stored.get(id) for id, key in named.items() if not stored or id in stored}
    known = {id: key for id, key in both.items() if key is not None}
    if not known:
        raise UsageError(
            f"Nobody could approve for {name}: "
            + (
                "none of the keys of promote.approvers is an approver's key of its protection."
                if stored
                else "promote.approvers names only ids of keys, and the alias has no approvers' keys."
            ),
            remedy="Name the public keys as file:PATH, and give the same keys to `trainwright protect`, if it has any.",
        )
    return Approvers(name, known, "spec")
