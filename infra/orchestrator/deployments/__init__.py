"""Deployments in Prefect: of nodes, pipelines, sensors, pages and the reaper. Nothing here starts a flow run."""
