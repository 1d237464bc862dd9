"""What the processes and nodes of a run used, as their records tell it, and what that costs.

Who is charged for what is decided in `tasks.costs`.
"""
