"""Compares the rows of sealed splits: which are the same, which are almost the same, and what is left without them."""
