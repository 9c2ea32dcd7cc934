"""Predictions of an output of which a part is known: ``P(y | x, part of y)``.

What is known is a tensor like the output, ``(batch, *event)``: 1 and 0 where a value is known to be so, NaN
where nothing is known.  One engine is a network that reads it beside the input, the other an energy of what
labels have beyond the task net's probabilities, with what is known clamped.
"""

from lossnet.conditional.base import Conditional
from lossnet.conditional.energy import EnergyConditional
from lossnet.conditional.known import PartlyKnown, combined, draw_known
from lossnet.conditional.network import NetworkConditional
from lossnet.conditional.training import ENGINES, Compared, make, train_conditional

__all__ = [
    "ENGINES",
    "Compared",
    "Conditional",
    "EnergyConditional",
    "NetworkConditional",
    "PartlyKnown",
    "combined",
    "draw_known",
    "make",
    "train_conditional",
]
