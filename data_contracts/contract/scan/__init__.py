"""Measures rows with DuckDB: over Arrow batches or over open Parquet files. What is measured, `translation` decides."""
