"""A run: its resolved inputs, its record, its progress, and what happens when it is started twice. No stage is carried
out here.
"""
