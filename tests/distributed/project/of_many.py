"""A module whose two ranks write a checkpoint as thousands would: its index says how a tensor is cut."""

from nets import Plain

from training.checkpoint import files

files.MOST_PIECES = 1


class OfMany(Plain):
    """As its parent."""
