"""The gates of a promotion: both models' scores on the same rows, and what they decide. Nothing here moves an alias."""
