"""Numbers on what a model learned: its energy, its labels, and the course of training.

An energy is low for good outputs, so its *pull* on a label, tag or pixel is ``−∂E/∂y``: positive where the
energy wants more of it.  `lossnet.outputs.panels` draws what these compute.
"""

from lossnet.analysis.labels import Interactions, LabelScores, Pair, hessian, label_scores, pull_along
from lossnet.analysis.masks import mask_pull
from lossnet.analysis.probabilities import (
    Average,
    PrecisionRecall,
    Reliability,
    RiskCoverage,
    precision_recall,
    precision_recall_curve,
    reliability,
    risk_coverage,
)
from lossnet.analysis.runs import Curve, Estimate, difference, estimate, read_history, trajectories
from lossnet.analysis.suspects import Suspect, doubted, suspects
from lossnet.analysis.tags import (
    Confusion,
    Transitions,
    bracket_scores,
    confusions,
    count_transitions,
    cross_hessian,
    span_kind_scores,
    tag_scores,
)

__all__ = [
    "Average",
    "Confusion",
    "Curve",
    "Estimate",
    "Interactions",
    "LabelScores",
    "Pair",
    "PrecisionRecall",
    "Reliability",
    "RiskCoverage",
    "Suspect",
    "Transitions",
    "bracket_scores",
    "confusions",
    "count_transitions",
    "cross_hessian",
    "difference",
    "doubted",
    "estimate",
    "hessian",
    "label_scores",
    "mask_pull",
    "precision_recall",
    "precision_recall_curve",
    "pull_along",
    "read_history",
    "reliability",
    "risk_coverage",
    "span_kind_scores",
    "suspects",
    "tag_scores",
    "trajectories",
]
