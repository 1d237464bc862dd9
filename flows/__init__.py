"""What happens, in order: the whole line as a Prefect flow, and the command line."""
