"""Predictions for raw rows: prepared as sharding does, given to the module as evaluate does, one line for each row.

Nothing here writes to a store.
"""
