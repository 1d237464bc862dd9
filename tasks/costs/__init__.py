"""What runs cost: charges from their records, sums by tag, stage and model, and rows in the FOCUS format."""
