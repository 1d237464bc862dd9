"""Checks data against its contracts for the stages: raw rows, evaluation sets, features, drift, rows that splits share.

The engine that checks is in `data_contracts.contract`, the work on files in `infra.contract`.
"""
