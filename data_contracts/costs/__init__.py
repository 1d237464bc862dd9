"""Records of what runs used, by execution, stage, node and month, and the budgets that limit it. No prices."""
