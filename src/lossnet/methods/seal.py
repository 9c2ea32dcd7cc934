"""SEAL-dynamic: energy and task net trained in turn (Lee et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn

from lossnet.energies import Energy
from lossnet.losses import NCE, EnergyFunction, EnergyLoss, TaskLoss
from lossnet.methods.base import Stage, TaskNetMethod, Update
from lossnet.spaces import Batch, Space

__all__ = ["SEAL"]


class SEAL(TaskNetMethod):
    """On each batch, ``energy_steps`` of the energy, then ``task_steps`` of the task net (SEAL Eq. 4, 5).

    The energy loss sees the task net's current prediction, held fixed; the task loss sees the new energy,
    held fixed.  Each network reads the other's batch once, however many steps it takes.

    >>> from lossnet.energies import Local, Sum
    >>> from lossnet.nets import MLP
    >>> from lossnet.spaces import MultiLabel
    >>> energy = Sum(MLP(4, hidden=8, layers=1), Local(8, labels=3))
    >>> method = SEAL(MLP(4, hidden=8, layers=1, outputs=3), energy, MultiLabel(3), energy_steps=2)
    >>> batch = Batch(torch.zeros(5, 4), torch.ones(5, 3))
    >>> [update.network for update in method.updates(batch)]
    ['energy', 'energy', 'task_net']
    """

    stackable = True
    per_replica: ClassVar[tuple[str, ...]] = tuple(
        f"task_loss.{term}_weight" for term in ("energy", "ce", "score")
    )

    def __init__(
        self,
        task_net: nn.Module,
        energy: Energy,
        space: Space,
        loss: EnergyLoss | None = None,
        task_loss: TaskLoss | None = None,
        energy_steps: int = 1,
        task_steps: int = 1,
    ) -> None:
        super().__init__(task_net, space)
        self.energy = energy
        self.loss = loss or NCE()
        self.task_loss = task_loss or TaskLoss()
        self.energy_steps = energy_steps
        self.task_steps = task_steps

    def stages(self) -> tuple[Stage, ...]:
        return (Stage("joint", ("energy", "task_net"), self.updates, self.predict),)

    def updates(self, batch: Batch) -> Iterator[Update]:
        """The steps of one batch."""
        yield from self.energy_updates(batch)
        yield from self.task_updates(batch, self.task_loss)

    def energy_updates(self, batch: Batch) -> Iterator[Update]:
        """The energy's steps against the task net as it is."""
        yield from self.explicit_updates(batch, self.energy_steps)

    def explicit_updates(self, batch: Batch, count: int) -> Iterator[Update]:
        """``count`` steps of the energy loss, of one prediction and with candidates of their own."""
        with torch.no_grad():
            prediction = self.prediction(batch)
        for loss in self.loss.candidate_batches(batch.y, prediction, count):
            yield Update("energy", batch.mean(loss(self.energy.at(batch.x))))

    def task_updates(
        self,
        batch: Batch,
        task_loss: TaskLoss,
        judge: Callable[[EnergyFunction, Tensor], EnergyFunction] | None = None,
    ) -> Iterator[Update]:
        """The task net's steps against the energy as it is, or what ``judge`` makes of energy and truth."""
        with torch.no_grad():
            energy: EnergyFunction = self.energy.at(batch.x)
        if judge is not None:
            energy = judge(energy, batch.y)
        for _ in range(self.task_steps):
            with self.energy.frozen(but=self.task_net.parameters()):
                loss = task_loss(self.prediction(batch), batch.y, energy, batch.weight)
            yield Update("task_net", loss)
