"""Carries the stages out: one plain function for each stage, the checks before any node is launched, and the
Prefect tasks that wrap the stages thinly (`orchestrated`). `tasks.run` defines a run.
"""
