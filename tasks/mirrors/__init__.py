"""Which mirrors are still to be told what, and what they are told."""
