"""Our loader: gathers the rows of a sealed split, whole batches at a time, and hands them over as torch batches.

`TrainLoader` follows the sample order and has a cursor, the samples consumed over all ranks; `OrderedLoader` yields
each row once, in stored order, for validation and evaluation.
"""

from training.formats import Shards
from training.loader.loaders import OrderedLoader, Sampling, TrainLoader, ahead_bytes
from training.loader.split import MemoryBudget, Split, stored_order

__all__ = ["MemoryBudget", "OrderedLoader", "Sampling", "Shards", "Split", "TrainLoader", "ahead_bytes", "stored_order"]
