"""Prefect on this machine: the server, the pool, the worker, the artifacts. No other package in infra uses Prefect.

No module here imports Prefect before a function is called, because Prefect reads its settings once, at import.
"""
