"""A `transformers.Trainer` with one more argument."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from lossnet.integrations.hf.alignment import label_metrics
from lossnet.integrations.hf.sharing import complete_card
from lossnet.integrations.hf.structured_loss import Reads, StructuredLoss
from lossnet.learned_loss import LearnedLoss


class StructuredLossTrainer(Trainer):  # type: ignore[misc]  # transformers' types are not followed
    """Train a model of ``transformers`` on a `LearnedLoss`: its ``Trainer`` with one more argument.

    All of `StructuredLoss` holds, and beyond that: checkpoints anywhere are resumed whole; logs have the
    energy's loss as ``energy_loss``; unless you give ``compute_metrics``, evaluation has the metrics of
    `label_metrics`; and the model card names them (`create_model_card`).

    Args:
        args: those of `transformers.Trainer`, by position or name.
        learned_loss: the loss of the model, with an energy that is trained beside it.
        reads: inputs of the energy; see `StructuredLoss`.

    >>> from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
    >>> from lossnet.energies import LabelInteraction, Local, Sum
    >>> from lossnet.nets import MLP
    >>> from lossnet.spaces import MultiLabel
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    >>> model = BertForSequenceClassification(BertConfig(vocab_size=30, num_labels=3, **sizes))
    >>> energy = Sum(MLP(16, hidden=8, layers=1), Local(8, labels=3), LabelInteraction(3, hidden=4))
    >>> args = TrainingArguments("unused", report_to=[], use_cpu=True)
    >>> trainer = StructuredLossTrainer(model, args, learned_loss=LearnedLoss(energy, space=MultiLabel(3)))
    >>> model.config.problem_type
    'multi_label_classification'
    """

    def __init__(
        self,
        *args: Any,
        learned_loss: LearnedLoss,
        reads: Reads = "features",
        callbacks: Sequence[TrainerCallback] | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs.pop("compute_loss_func", None) is not None:
            raise ValueError(
                "the learned loss is the loss; leave out compute_loss_func, or use plain Trainer"
            )
        self.structured_loss = StructuredLoss(learned_loss, reads)
        kwargs.setdefault("compute_metrics", label_metrics(self.structured_loss.space))
        super().__init__(
            *args,
            compute_loss_func=self.structured_loss,
            callbacks=[self.structured_loss, *(callbacks or [])],
            **kwargs,
        )

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as `transformers.Trainer.train` does; what is resumed has the energy of its checkpoint."""
        given = resume_from_checkpoint if isinstance(resume_from_checkpoint, (str, Path)) else None
        self.structured_loss.resume_from = None if given is None else Path(given)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log as `transformers.Trainer.log` does, the energy's last loss beside the model's."""
        energy_loss = self.structured_loss.learned_loss.energy_loss
        if "loss" in logs and energy_loss is not None:
            logs["energy_loss"] = energy_loss.item()
        super().log(logs, *args, **kwargs)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write the card of `transformers.Trainer.create_model_card`, made whole for the hub.

        Beyond that one it has the pipeline tag, the metrics of the last evaluation as a model index, and how
        to predict with ``transformers`` alone.  ``license=`` and ``dataset=`` are yours to give.
        """
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            complete_card(self, self.structured_loss.space, kwargs.get("dataset"))
