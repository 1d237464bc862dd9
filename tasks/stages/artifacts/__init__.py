"""The pages that a stage shows in the Prefect UI, as Markdown. Nothing here decides, and Prefect is not imported."""
