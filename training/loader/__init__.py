"""Our loader: the rows of a sealed split, gathered whole batches at a time, handed over as torch batches.

`TrainLoader` follows the sample order and has a cursor, the samples consumed over all ranks; `OrderedLoader` yields
each row once, in stored order, for validation and evaluation.
"""

from training.loader.loaders import OrderedLoader, TrainLoader, ahead_bytes
from training.loader.split import Room, Split, stored_order

__all__ = ["OrderedLoader", "Room", "Split", "TrainLoader", "ahead_bytes", "stored_order"]
