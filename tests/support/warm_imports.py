"""What the warm process of `tests.support.warm` imports: what every rank imports before the user's code."""

import omegaconf  # noqa: F401  Lightning does, when it makes a checkpoint

from training import checkpoint, lightning_adapter, loader  # noqa: F401
from training.fit import failures, loop, measuring, supervisor  # noqa: F401
from training.score import evaluate_worker, verify_worker  # noqa: F401
from training.user import ready  # noqa: F401
