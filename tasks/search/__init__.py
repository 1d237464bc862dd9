"""`trainwright search`: trials of a spec with other values, each an ordinary run, and the promotion of the best."""
