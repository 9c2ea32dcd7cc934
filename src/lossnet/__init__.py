"""Lossnet: train networks with a loss that is itself a network."""

from importlib import metadata

from lossnet import energies, hypergradient, losses, methods, nets, scores, spaces
from lossnet.learned_loss import LearnedLoss
from lossnet.model import Model, load
from lossnet.run import Run, train
from lossnet.settings import Settings
from lossnet.spaces import Mask, MultiLabel, Tags
from lossnet.training import Trainer

try:
    __version__ = metadata.version("lossnet")
except metadata.PackageNotFoundError:  # sources on the path, not installed
    __version__ = "0"

__all__ = [
    "LearnedLoss",
    "Mask",
    "Model",
    "MultiLabel",
    "Run",
    "Settings",
    "Tags",
    "Trainer",
    "energies",
    "hypergradient",
    "load",
    "losses",
    "methods",
    "nets",
    "scores",
    "spaces",
    "train",
]
