"""Pages that people read in a browser: the report of a run, and the comparison of two; each one HTML file."""
