"""Losses of energies and of task nets.

An energy loss proposes the candidates that it wants to see (`EnergyLoss.propose`) and compares their
energies with the truth's.  The task loss is a weighted sum of energy, cross-entropy and score.
"""

from lossnet.losses.base import EnergyFunction, EnergyLoss
from lossnet.losses.contrastive import CD, NCE, Ranking
from lossnet.losses.fixed import Asymmetric, Dice, DirectRanking, FixedLoss, Lovasz, cross_entropy
from lossnet.losses.margin import Margin, Perceptron
from lossnet.losses.partition import Partition
from lossnet.losses.regression import Regression, RegressionS
from lossnet.losses.task import TaskLoss

__all__ = [
    "CD",
    "ENERGY_LOSSES",
    "FIXED_LOSSES",
    "NCE",
    "Asymmetric",
    "Dice",
    "DirectRanking",
    "EnergyFunction",
    "EnergyLoss",
    "FixedLoss",
    "Lovasz",
    "Margin",
    "Partition",
    "Perceptron",
    "Ranking",
    "Regression",
    "RegressionS",
    "TaskLoss",
    "cross_entropy",
]

#: the losses of energies; SEAL takes any of them, and the first by default
ENERGY_LOSSES = (NCE, Margin, Regression, RegressionS, Ranking, CD, Perceptron, Partition)
#: the losses that take the place of cross-entropy
FIXED_LOSSES = (Asymmetric, Dice, Lovasz, DirectRanking)
