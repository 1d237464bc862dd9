"""The profile of raw data: what each column holds, in counts that merge exactly; and the drift between two profiles."""
