"""Single flow runs in Prefect: start them, follow them, suspend, resume and cancel them."""
