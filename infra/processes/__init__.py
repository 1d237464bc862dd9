"""Run processes that can be found and ended with all their descendants, and children that do one job.

A child answers through files. This package does not know what the processes run.
"""
