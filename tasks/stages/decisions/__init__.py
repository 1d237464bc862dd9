"""What people decide about a model: approvals before a promotion, rollbacks, releases, protected aliases."""
