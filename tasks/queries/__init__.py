"""Queries of a store: a run's plan, checkpoints, logs, history, and the proof of a model. Nothing here writes."""
