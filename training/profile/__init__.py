"""Times the parts of a training step in a short training that leaves nothing behind."""
