"""Learned losses for Hugging Face's ``Trainer``; needs ``transformers`` and ``accelerate``.

`StructuredLossTrainer` is a `transformers.Trainer` with one more argument, and `StructuredLoss` the same for
a ``Trainer`` that cannot be subclassed.  What they save is read by plain ``transformers``, without Lossnet.
"""

try:
    from lossnet.integrations.hf.alignment import label_metrics
    from lossnet.integrations.hf.sharing import tune_thresholds
    from lossnet.integrations.hf.structured_loss import Reads, StructuredLoss
    from lossnet.integrations.hf.trainer import StructuredLossTrainer
except ModuleNotFoundError as error:
    raise ImportError(f"Hugging Face's Trainer needs {error.name}; install lossnet[text]") from error

__all__ = ["Reads", "StructuredLoss", "StructuredLossTrainer", "label_metrics", "tune_thresholds"]
