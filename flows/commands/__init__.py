"""The commands of the command line; each module is imported only when one of its commands is called."""
