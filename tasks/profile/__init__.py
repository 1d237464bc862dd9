"""Where a training step's time goes, what bounds it, and whether the change most worth trying helps."""
