"""Measures how much memory a module needs, and one step of it, in a process that trains nothing."""
