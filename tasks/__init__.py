"""The stages: one plain function each, and the Prefect tasks that wrap them thinly (`orchestrated`)."""
