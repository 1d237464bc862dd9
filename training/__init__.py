"""All code that uses tensors, and torch-free packages beside it: shard formats, split, order, plan, sharding."""
