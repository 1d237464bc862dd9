"""Prefect on this machine: the server, the pool, the worker, the artifacts. No other package in infra uses Prefect.

Prefect reads its settings once, at import. So no module here imports it before a function is called, except
`flow_runs`, which is for the process of a flow.
"""
