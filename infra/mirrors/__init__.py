"""Speaks to the systems outside that are told of runs: MLflow, OpenLineage, Git. Nothing here decides what is told."""
