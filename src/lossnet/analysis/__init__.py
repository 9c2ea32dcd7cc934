"""What did it learn?  The energy, the labels and the course of training, in numbers.

=================  ===================================================================================
`labels`           which labels an energy wants together, and each label's gain over another run
`masks`            which pixels an energy wants changed
`runs`             trajectories of training; means and differences over seeds with their intervals
=================  ===================================================================================

An energy is low for good outputs, so its *pull* on a label or pixel is ``−∂E/∂y``: positive where the energy
wants more of it.  A new kind of output is one new file here; `lossnet.report` draws what these compute.
"""

from lossnet.analysis.labels import Interactions, LabelScores, Pair, hessian, label_scores, pull_along
from lossnet.analysis.masks import mask_pull
from lossnet.analysis.runs import Curve, Estimate, difference, estimate, read_history, trajectories

__all__ = [
    "Curve",
    "Estimate",
    "Interactions",
    "LabelScores",
    "Pair",
    "difference",
    "estimate",
    "hessian",
    "label_scores",
    "mask_pull",
    "pull_along",
    "read_history",
    "trajectories",
]
