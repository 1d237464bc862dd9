"""Exports a model version to a folder: what the child that does it is asked, the model card, and the folder itself.

Nothing here reads a tensor; the child in `training.export` does.
"""
