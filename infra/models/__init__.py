"""Models in the store: versions and aliases, recipes, and which comparisons a set of test rows has decided.

What decides about a promotion is in `tasks`; receipts, which others read too, are in `infra.records`.
"""
