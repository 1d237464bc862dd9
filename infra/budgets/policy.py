"""Refuses a spec whose tags are not those that the policy demands: of the store, and of this machine's environment.

Neither is named by the spec, so a spec cannot leave them out. A spec may name another store, which has another policy:
the environment of a work pool holds for all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from data_contracts.costs.budgets import Policy
from data_contracts.errors import SpecError
from data_contracts.pipeline_spec import PipelineSpec
from infra.budgets.rules_files import read_rules
from infra.budgets.rules_versions import newest_rules
from infra.store import Store, layout
from infra.store.records import parsed

# A file with the policy of this machine.
POLICY = "TRAINWRIGHT_POLICY"


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
