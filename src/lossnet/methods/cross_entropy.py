"""Cross-entropy, and the fixed losses that take its place."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from lossnet.losses import FIXED_LOSSES, TaskLoss, cross_entropy
from lossnet.methods.base import TASK_LOSS_WEIGHTS, Stage, TaskNetMethod, Update
from lossnet.methods.spec import MethodSpec
from lossnet.spaces import Batch, Space


class CrossEntropy(TaskNetMethod):
    """A task net trained on a loss without an energy: the baseline of every table.

    ``TaskLoss(score_weight=30)`` adds a soft-F1 term, ``TaskLoss(fixed=Asymmetric())`` has another loss.

    >>> from lossnet import MultiLabel, nets
    >>> method = CrossEntropy(nets.MLP(4, hidden=8, layers=1, outputs=3), MultiLabel(3))
    >>> [stage.networks for stage in method.stages()]
    [('task_net',)]
    """

    stackable = True
    partly_known = True
    per_replica = TASK_LOSS_WEIGHTS

    def __init__(self, task_net: nn.Module, space: Space, task_loss: TaskLoss | None = None) -> None:
        super().__init__(task_net, space)
        self.task_loss = task_loss or TaskLoss()

    def stages(self) -> tuple[Stage, ...]:
        return (Stage("task net", ("task_net",), self.updates, self.predict),)

    def updates(self, batch: Batch) -> Iterator[Update]:
        yield Update("task_net", self.task_loss(self.prediction(batch), batch.y, weight=batch.weight))


SPEC = MethodSpec(
    "cross-entropy",
    CrossEntropy,
    "a task net alone; soft-f1 adds a score term, the others replace cross-entropy",
    losses={"none": cross_entropy, "soft-f1": cross_entropy, **{loss.name: loss() for loss in FIXED_LOSSES}},
    rates={"task_net": "task_lr"},
    search=("task_dropout",),
    # Cross-entropy sums over labels, so the weight of one score grows with their number.
    score_shares={"soft-f1": 0.3},
    portfolio=("none", "soft-f1"),
)
