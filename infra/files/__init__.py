"""Files of this machine: locks, replacing a file as a whole, digests, new folders. Nothing here knows the store."""
