"""Trainwright's own Prefect server: on this machine, or a team's on PostgreSQL; who may use it; its backups."""
