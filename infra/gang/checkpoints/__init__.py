"""What a training leaves in the store: committed checkpoints, their marks, and the ranks of each generation.

Only the conductor moves the `latest` pointer.
"""
