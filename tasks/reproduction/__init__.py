"""Makes a model again from what is sealed, and compares every id on the way. Never writes to the model's own store."""
