"""Everything with a tensor. Torch is imported in child processes alone, and none of them imports Prefect.

`shard`, `order`, `formats` and `contamination` work without torch.
"""
