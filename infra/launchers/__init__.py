"""Launchers beside those that every installation has: each is one file, with a `Membership` and what runs on a node."""
