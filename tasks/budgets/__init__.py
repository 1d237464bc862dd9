"""The use of budgets by runs: counted by the same charges as `trainwright cost`, and reserved beforehand."""
