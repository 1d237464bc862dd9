"""The infrastructure: the store, sources, registry, launchers, processes, machines, cost and settings."""
