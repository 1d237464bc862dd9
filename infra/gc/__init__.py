"""Delete what nothing reaches any more: the census of a store, the pure function that decides, and the deletion."""

from infra.gc.collection import Collected, collect
from infra.gc.retention import Deletion, Limits, StoreItem, items_to_delete

__all__ = ["Collected", "Deletion", "Limits", "StoreItem", "collect", "items_to_delete"]
