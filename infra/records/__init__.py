"""Records in the store that several rooms read: hand-offs, receipts, datasets, checkpoints, evaluations, nodes.

Nothing here decides; paths come from `infra.store`.
"""
