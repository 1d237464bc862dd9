"""What runs use of budgets: counted by the same charges as `trainwright cost`, reserved before it is used."""
