"""How much evidence the next comparison on the same rows must bring, so that all together stay honest.

The chance that *any* worse model is promoted while a test set lives is to be at most α, whoever chooses the candidates,
as long as they are chosen by nothing of these rows but the verdicts. A chooser who has seen k - 1 verdicts, j of them
"better", can have seen C(k - 1, j) different sequences, and may have a candidate ready for each. So each gets the
level

    α / (k² (j + 1) (j + 2) C(k - 1, j))

which is α / (k (k + 1)) for all sequences of the same k together, and α for all k: a union bound over the tree of
verdicts. It is the Ladder's argument
(Blum and Hardt 2015) with a test in place of its fixed step. `docs/adr` compares it with an always-valid confidence
sequence and with the Ladder itself.
"""

from __future__ import annotations

import math

from scipy.special import gammaln


def level(alpha: float, before: float, promoted: float) -> float:
    """The one-sided level of the next comparison.

    Args:
        alpha: the chance of any false promotion that is allowed while the rows are in use.
        before: how many comparisons these rows have decided; a part of a comparison if it shared a part of the rows.
        promoted: how many of them promoted.
    """
    before, promoted = math.ceil(before - 1e-9), math.ceil(promoted - 1e-9)
    promoted = min(promoted, before)
    sequences = float(gammaln(before + 1) - gammaln(promoted + 1) - gammaln(before - promoted + 1))
    spent = 2 * math.log(before + 1) + math.log((promoted + 1) * (promoted + 2)) + sequences
    return math.exp(math.log(alpha) - spent)
