"""Training: the loop, its checkpoints and its evaluation, in one process or several."""

from lossnet.training.checkpoint import Checkpoint, CheckpointError
from lossnet.training.distributed import Processes, joined
from lossnet.training.evaluation import Views, predict
from lossnet.training.replicas import Outcome, fit_together, why_alone
from lossnet.training.trainer import Dataset, Interrupted, NonFiniteLoss, Trainer

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Dataset",
    "Interrupted",
    "NonFiniteLoss",
    "Outcome",
    "Processes",
    "Trainer",
    "Views",
    "fit_together",
    "joined",
    "predict",
    "why_alone",
]
