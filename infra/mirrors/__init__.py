"""The systems outside that are told of runs: MLflow, OpenLineage, Git."""
