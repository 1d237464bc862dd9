"""Measures rows with DuckDB: over Arrow batches or over open Parquet files. `translation` decides what to measure."""
