"""Exports a checkpoint to files that run without Trainwright, and compares their outputs with the checkpoint's.

Nothing here writes to a store.
"""
