"""What the warm process of `tests.support.warm` imports: what every rank imports before the user's code."""

import omegaconf  # noqa: F401  Lightning does, when it makes a checkpoint

import training.checkpoint
import training.fit.failures
import training.fit.history
import training.fit.loop
import training.fit.supervisor
import training.lightning_adapter
import training.loader
import training.score.evaluate_worker
import training.score.verify_worker
import training.user.assemble  # noqa: F401
