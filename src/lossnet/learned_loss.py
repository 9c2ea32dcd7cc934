"""The drop-in criterion: a loss that learns, for somebody else's training loop."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from lossnet.energies import Energy
from lossnet.losses import NCE, EnergyLoss, TaskLoss
from lossnet.spaces import Prediction, Space

__all__ = ["LearnedLoss"]


class LearnedLoss(nn.Module):
    """SEAL-dynamic as a criterion: call it for the task net's loss, then `step` trains the energy.

    Args:
        energy: the network that judges outputs; it is the criterion's own and is trained by `step`.
        space: of the outputs.
        loss: what trains the energy.
        task_loss: the weights of energy, cross-entropy and score.
        lr: the energy's learning rate.
        weight_decay: the energy's.
        steps: energy steps for each call of `step`.
        clip: largest norm of the energy's gradient.

    >>> from lossnet.energies import LabelInteraction, Local, Sum
    >>> from lossnet.nets import MLP
    >>> from lossnet.spaces import MultiLabel
    >>> energy = Sum(MLP(4, hidden=8, layers=1), Local(8, labels=3), LabelInteraction(3, hidden=5))
    >>> model = nn.Linear(4, 3)
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> criterion = LearnedLoss(energy, space=MultiLabel(3), loss=NCE(samples=20))
    >>> x, y = torch.rand(5, 4), torch.ones(5, 3)
    >>> loss = criterion(x, model(x), y); loss.backward(); optimizer.step(); _ = criterion.step()
    """

    def __init__(
        self,
        energy: Energy,
        space: Space,
        loss: EnergyLoss | None = None,
        task_loss: TaskLoss | None = None,
        lr: float = 1e-3,
        weight_decay: float = 1e-5,
        steps: int = 1,
        clip: float = 10.0,
    ) -> None:
        super().__init__()
        self.energy = energy
        self.space = space
        self.loss = loss or NCE()
        self.task_loss = task_loss or TaskLoss()
        self.optimizer = torch.optim.AdamW(energy.parameters(), lr=lr, weight_decay=weight_decay)
        self.steps = steps
        self.clip = clip
        self._seen: tuple[Tensor, Tensor, Prediction] | None = None

    def forward(self, x: Tensor, logits: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        """The task net's loss, a scalar whose gradient reaches the logits and never the energy."""
        prediction = Prediction(self.space, logits, mask)
        self._seen = (x.detach(), y, prediction.detach())
        with torch.no_grad():
            energy = self.energy.at(self._seen[0])
        # Somebody else calls backward(): otherwise gradients would pile up in the energy.
        with self.energy.frozen():
            return self.task_loss(prediction, y, energy)

    def step(self) -> float:
        """Trains the energy on the batch of the last call; returns the last energy loss."""
        if self._seen is None:
            raise RuntimeError("call the criterion on a batch before criterion.step()")
        x, y, prediction = self._seen
        value = torch.zeros(())
        for loss in self.loss.candidate_batches(y, prediction, self.steps):
            value = loss(self.energy.at(x)).mean()
            self.optimizer.zero_grad()
            value.backward()
            clip_grad_norm_(self.energy.parameters(), self.clip)
            self.optimizer.step()
        return float(value.detach())
