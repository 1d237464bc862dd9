"""Budgets and the policy on tags, as a store keeps them: their versions, and a ledger for each budget and period."""
