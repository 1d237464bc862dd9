"""The order of events: the whole line as a Prefect flow, and the command line. The work itself is done in `tasks`."""
