"""The stages, each a `Stage` in a module of its own name, and the Prefect task that wraps a stage thinly
(`orchestrated`).
"""
