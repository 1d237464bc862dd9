"""Where it happens: the store, sources, registry, gangs, processes, machines, prices and settings.

Nothing here imports torch or `training`, and only `orchestrator` imports Prefect.
"""
