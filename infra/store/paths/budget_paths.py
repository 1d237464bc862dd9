"""The paths of budgets and of the policy on tags; `infra/store/layout.py` has all others."""

from __future__ import annotations

from infra.store.paths.path_parts import name_part, number_part

_ROOT = "budgets"


def rules_versions(kind: str) -> str:
    """Folder of the versions of a store's `budgets` or `policy`: `<n>.json` from 0, the newest of which holds."""
    return f"editions/{name_part(kind)}"


def rules_version(kind: str, n: int) -> str:
    """Version `n`."""
    return f"{rules_versions(kind)}/{number_part(n)}.json"


def periods(budget: str, scope: str) -> str:
    """Folder of the periods in which a budget was used; `scope` is the digest of what it counts."""
    return f"{_ROOT}/{name_part(budget)}/{name_part(scope)}"


def balance(budget: str, scope: str, period: str) -> str:
    """Pointer: the amounts of a budget that are used and held in a period."""
    return f"{periods(budget, scope)}/{name_part(period)}/balance"


def entries(budget: str, scope: str, period: str) -> str:
    """Folder of what each ended execution used of it."""
    return f"{periods(budget, scope)}/{name_part(period)}/entries"


def entry(budget: str, scope: str, period: str, name: str) -> str:
    """Record of what one execution used, created once."""
    return f"{entries(budget, scope, period)}/{name_part(name)}.json"


def warning(budget: str, scope: str, period: str, name: str) -> str:
    """Record that a share of it was reached, created once."""
    return f"{periods(budget, scope)}/{name_part(period)}/warned/{name_part(name)}.json"
