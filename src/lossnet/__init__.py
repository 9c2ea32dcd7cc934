"""Lossnet: train networks with a loss that is itself a network."""

from importlib import metadata
from typing import TYPE_CHECKING, Any

from lossnet import energies, hypergradient, losses, methods, nets, scores, spaces
from lossnet.learned_loss import LearnedLoss
from lossnet.model import Model, load
from lossnet.prediction import Ensemble
from lossnet.run import Run, train
from lossnet.settings import Settings
from lossnet.spaces import Mask, MultiLabel, Tags
from lossnet.training import Trainer

if TYPE_CHECKING:
    from lossnet.estimators import MultiLabelClassifier, Segmenter, SequenceTagger

try:
    __version__ = metadata.version("lossnet")
except metadata.PackageNotFoundError:  # sources on the path, not installed
    __version__ = "0"

__all__ = [
    "Ensemble",
    "LearnedLoss",
    "Mask",
    "Model",
    "MultiLabel",
    "MultiLabelClassifier",
    "Run",
    "Segmenter",
    "SequenceTagger",
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


def __getattr__(name: str) -> Any:
    # scikit-learn takes a while to import, and the command line does not need its estimators.
    if name in ("MultiLabelClassifier", "Segmenter", "SequenceTagger"):
        from lossnet import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'lossnet' has no attribute {name!r}")
