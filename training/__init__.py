"""Everything with a tensor, and beside it, torch-free by name: shard formats, split, order, plan, sharding."""
