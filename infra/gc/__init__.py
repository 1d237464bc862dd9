"""What nothing reaches any more: the census of a store, the pure function that decides, and the deletion."""

from infra.gc.collection import Collected, collect
from infra.gc.things import Condemned, Limits, Thing, condemn

__all__ = ["Collected", "Condemned", "Limits", "Thing", "collect", "condemn"]
