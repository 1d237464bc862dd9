"""A canary: a version that each run scores beside the champion on fresh rows, until it is promoted or withdrawn."""
