"""Estimates before a run of what it needs: memory, time and cost, and the cheapest machines that suffice."""
