"""Verify and evaluate: clean processes that load one checkpoint, and verify it or score it on every row once. Nothing
here trains or decides a gate.
"""
