"""Makes a model again from what is sealed, and compares every id on the way."""
