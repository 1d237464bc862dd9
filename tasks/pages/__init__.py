"""Pages that people read in a browser: the report of a run, and the comparison of two; each one HTML file.

A page decides nothing, and a part that cannot be made never ends a run.
"""
