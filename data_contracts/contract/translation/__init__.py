"""Turns expectations into aggregates that show exactly whether they hold, and says which have none.

Nothing here reads a row.
"""
