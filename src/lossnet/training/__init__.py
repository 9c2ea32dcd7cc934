"""Training: the loop, its checkpoints and its evaluation, in one process or several."""

from lossnet.training.checkpoint import Checkpoint, CheckpointError
from lossnet.training.engines import Processes, joined
from lossnet.training.evaluation import Dataset, Views, predict
from lossnet.training.state import Callback, NonFiniteLoss
from lossnet.training.trainer import Interrupted, Outcome, Trainer, fit_together, stacking_blocker

__all__ = [
    "Callback",
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
    "stacking_blocker",
]
