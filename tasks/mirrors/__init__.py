"""Finds the updates that mirrors still need, and sends them. No decision reads anything from a mirror."""
