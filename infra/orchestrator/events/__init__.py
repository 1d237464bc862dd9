"""Events of runs, models, drift and budgets in Prefect, and the automations that act on them or notify people."""
