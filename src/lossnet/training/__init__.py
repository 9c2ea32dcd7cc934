"""Training: the loop, its checkpoints and its evaluation."""

from lossnet.training.checkpoint import Checkpoint, CheckpointError
from lossnet.training.evaluation import Views, predict
from lossnet.training.trainer import Dataset, Interrupted, NonFiniteLoss, Trainer

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Dataset",
    "Interrupted",
    "NonFiniteLoss",
    "Trainer",
    "Views",
    "predict",
]
