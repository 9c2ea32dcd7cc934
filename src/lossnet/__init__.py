"""Lossnet: train networks with a loss that is itself a network."""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lossnet import energies, hypergradient, losses, methods, nets, scores, spaces
    from lossnet.energies import rule
    from lossnet.estimators import MultiLabelClassifier, Segmenter, SequenceTagger
    from lossnet.learned_loss import LearnedLoss
    from lossnet.model import Model, load
    from lossnet.own import OwnParts
    from lossnet.prediction import Ensemble
    from lossnet.run import Run, train
    from lossnet.settings import Settings
    from lossnet.spaces import Mask, MultiLabel, Tags
    from lossnet.training import Trainer

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
    "OwnParts",
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
    "rule",
    "scores",
    "spaces",
    "train",
]

#: the module that defines each public name; names that are not here are modules themselves
_HOMES = {
    **dict.fromkeys(("Mask", "MultiLabel", "Tags"), "spaces"),
    **dict.fromkeys(("Model", "load"), "model"),
    **dict.fromkeys(("MultiLabelClassifier", "Segmenter", "SequenceTagger"), "estimators"),
    **dict.fromkeys(("Run", "train"), "run"),
    "Ensemble": "prediction",
    "LearnedLoss": "learned_loss",
    "rule": "energies",
    "OwnParts": "own",
    "Settings": "settings",
    "Trainer": "training",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch, scikit-learn and the others take seconds."""
    if name not in __all__:
        raise AttributeError(f"module 'lossnet' has no attribute {name!r}")
    home = import_module(f"lossnet.{_HOMES.get(name, name)}")
    value = globals()[name] = getattr(home, name) if name in _HOMES else home
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
