"""SEAL-dynamic: energy and task net trained in turn (Lee et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from lossnet.energies import Energy
from lossnet.losses import ENERGY_LOSSES, NCE, EnergyFunction, EnergyLoss, TaskLoss
from lossnet.methods.base import TASK_LOSS_WEIGHTS, Stage, TaskNetMethod, Update
from lossnet.methods.spec import MethodSpec, Parts, named
from lossnet.spaces import Batch, Prediction, Space


def energy_losses(
    energy: Energy, loss: EnergyLoss, batch: Batch, prediction: Prediction, count: int
) -> Iterator[Tensor]:
    """Yield the losses ``()`` of ``count`` energy steps against one prediction, held fixed (SEAL Eq. 4).

    Each has candidates of its own and sees the energy of the moment: take the step between two of them.
    """
    for instance_losses in loss.candidate_batches(batch.y, prediction, count):
        yield batch.mean(instance_losses(energy.at(batch.x, batch.facts)))


class SEAL(TaskNetMethod):
    """``energy_steps`` of the energy, then ``task_steps`` of the task net on each batch (SEAL Eq. 4, 5).

    The energy loss sees the task net's current prediction, held fixed; the task loss sees the new energy,
    held fixed.  Each network reads the other's batch once, however many steps it takes.  Without
    ``energy_steps`` the energy is not trained: any scorer of outputs then is a loss.

    >>> from lossnet import MultiLabel, energies, nets
    >>> energy = energies.Sum(nets.MLP(4, hidden=8, layers=1), energies.Local(8, labels=3))
    >>> method = SEAL(nets.MLP(4, hidden=8, layers=1, outputs=3), energy, MultiLabel(3), energy_steps=2)
    >>> batch = Batch(torch.zeros(5, 4), torch.ones(5, 3))
    >>> [update.network for update in method.updates(batch)]
    ['energy', 'energy', 'task_net']
    """

    stackable = True
    per_replica = TASK_LOSS_WEIGHTS

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
        if not self.energy_steps:
            return (Stage("task net", ("task_net",), self.updates, self.predict),)
        return (Stage("joint", ("energy", "task_net"), self.updates, self.predict),)

    def updates(self, batch: Batch) -> Iterator[Update]:
        if self.energy_steps:
            yield from self.energy_updates(batch)
        yield from self.task_updates(batch)

    def energy_updates(self, batch: Batch) -> Iterator[Update]:
        """Yield the energy's steps against the present task net."""
        yield from self.explicit_updates(batch, self.energy_steps)

    def explicit_updates(self, batch: Batch, count: int) -> Iterator[Update]:
        """Yield ``count`` steps of the energy loss, of one prediction and with candidates of their own."""
        with torch.no_grad():
            prediction = self.prediction(batch)
        for loss in energy_losses(self.energy, self.loss, batch, prediction, count):
            yield Update("energy", loss)

    def task_updates(
        self, batch: Batch, objective: Callable[[EnergyFunction, Tensor], EnergyFunction] | None = None
    ) -> Iterator[Update]:
        """Yield the task net's steps against the energy, or what ``objective`` makes of energy and truth."""
        with torch.no_grad():
            energy: EnergyFunction = self.energy.at(batch.x, batch.facts)
        if objective is not None:
            energy = objective(energy, batch.y)
        for _ in range(self.task_steps):
            with self.energy.frozen(but=self.task_net.parameters()):
                loss = self.task_loss(self.prediction(batch), batch.y, energy, batch.weight)
            yield Update("task_net", loss)


def _build(parts: Parts) -> SEAL:
    method = parts.make(SEAL)
    if not any(parameter.requires_grad for parameter in method.energy.parameters()):
        method.energy_steps = 0
    return method


SPEC = MethodSpec(
    "seal",
    SEAL,
    "energy and task net trained in turn",
    losses=named(*ENERGY_LOSSES),
    build=_build,
    frozen_energy=True,
    portfolio=("nce",),
)
