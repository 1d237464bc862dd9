"""What a run does and what people ask of a store, as plain functions.

Each stage is a `Stage` in a module of its own name under `stages`; `stages.orchestrated` wraps it as a Prefect task.
Nothing here touches a tensor.
"""
