"""The data that passes between stages: the pipeline spec, the hand-offs, the error tree, and the contracts on data."""
