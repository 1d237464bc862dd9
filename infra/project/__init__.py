"""The user's project: which of its files are code, the sealed bundle they are packed into, and the versions beside it.

Nothing here imports the user's code.
"""
