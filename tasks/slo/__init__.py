"""Service level objectives: what the ledger of runs says of them."""
