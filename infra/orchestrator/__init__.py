"""Prefect's side of this machine: the server, the pool, the worker, the artifacts. Nothing else in infra knows Prefect.

No module here imports Prefect before a function is called, because Prefect reads its settings once, at import.
"""
