"""Pieces of a stage's work that other machines do: handed over in a shared folder, done there by a child process.

The stages that send them to a cluster are in `tasks.stages.dask_cluster`.
"""
