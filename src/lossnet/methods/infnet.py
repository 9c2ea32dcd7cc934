"""Inference networks (Tu & Gimpel 2018)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import nn

from lossnet.energies import Energy
from lossnet.losses import Margin, Perceptron, TaskLoss
from lossnet.methods.base import Stage
from lossnet.methods.seal import SEAL
from lossnet.spaces import Space

__all__ = ["InfNet"]


class InfNet(SEAL):
    """A cost-augmented network trained against the energy, then fine-tuned to minimise it (InfNet+ Eq. 3).

    ``min_E max_A [cost(A(x), y) − E(x, A(x)) + E(x, y)]₊`` with the truncation kept for the energy and
    dropped for the network.  The network's part is the task loss with ``λ_E · cost`` *subtracted*: without
    that, it is SEAL with a margin loss.  Prediction needs low energy rather than high cost, so a second
    stage trains the network on the plain task loss with the energy frozen.

    >>> import torch
    >>> from lossnet.energies import Local, Sum
    >>> from lossnet.nets import MLP
    >>> from lossnet.spaces import MultiLabel
    >>> energy = Sum(MLP(4, hidden=8, layers=1), Local(8, labels=3))
    >>> method = InfNet(MLP(4, hidden=8, layers=1, outputs=3), energy, MultiLabel(3))
    >>> [(stage.name, stage.networks) for stage in method.stages()]
    [('joint', ('energy', 'task_net')), ('fine-tuning', ('task_net',))]
    """

    def __init__(
        self,
        task_net: nn.Module,
        energy: Energy,
        space: Space,
        loss: Margin | None = None,
        task_loss: TaskLoss | None = None,
        energy_steps: int = 1,
        task_steps: int = 1,
    ) -> None:
        loss, task_loss = loss or Margin(), task_loss or TaskLoss()
        # A perceptron loss has no cost to augment with.
        gain = 0.0 if isinstance(loss, Perceptron) else task_loss.energy
        against = replace(task_loss, score=task_loss.score - gain, measure=loss.score)
        super().__init__(task_net, energy, space, loss, against, energy_steps, task_steps)
        self.tuning_loss = task_loss

    def stages(self) -> tuple[Stage, ...]:
        updates = partial(self.task_updates, task_loss=self.tuning_loss)
        return (*super().stages(), Stage("fine-tuning", ("task_net",), updates, self.predict))
