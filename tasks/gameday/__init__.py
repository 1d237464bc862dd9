"""A game day: faults injected into short trainings of a pipeline, and how the line recovers from each."""
