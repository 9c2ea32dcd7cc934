"""Training: the loop, its checkpoints and its evaluation, in one process or several."""

from lossnet.training.checkpoint import Checkpoint, CheckpointError
from lossnet.training.engines import joined
from lossnet.training.evaluation import Views, predict
from lossnet.training.state import Callback, NonFiniteLoss
from lossnet.training.trainer import Interrupted, Outcome, Trainer, fit_together, stacking_blocker

__all__ = [
    "Callback",
    "Checkpoint",
    "CheckpointError",
    "Interrupted",
    "NonFiniteLoss",
    "Outcome",
    "Trainer",
    "Views",
    "fit_together",
    "joined",
    "predict",
    "stacking_blocker",
]
