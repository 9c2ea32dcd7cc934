"""SEAL-dynamic: energy and task net trained in turn (Lee et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from lossnet.energies import Energy
from lossnet.losses import ENERGY_LOSSES, NCE, EnergyFunction, EnergyLoss, TaskLoss
from lossnet.methods.base import TASK_LOSS_WEIGHTS, Stage, TaskNetMethod, Update
from lossnet.methods.spec import MethodSpec, Parts, named
from lossnet.spaces import Batch, Prediction, Space

#: the order of a batch's steps
Schedule = Literal["nested", "grouped"]


def energy_losses(
    energy: Energy, loss: EnergyLoss, batch: Batch, prediction: Prediction, count: int
) -> Iterator[Tensor]:
    """Yield the losses ``()`` of ``count`` energy steps against one prediction, held fixed (SEAL Eq. 4).

    Each has candidates of its own and sees the energy of the moment: take the step between two of them.
    Labels that are unknown are drawn from the prediction: of the truth's distribution, as far as it is known.
    """
    for instance_losses in loss.candidate_batches(prediction.completed(batch.y), prediction, count):
        yield batch.mean(instance_losses(energy.at(batch.x, batch.facts)))


class SEAL(TaskNetMethod):
    """Train an energy and a task net in turn, several steps of each on every batch (SEAL Eq. 4, 5).

    The energy loss sees the task net's current prediction, held fixed; the task loss sees the new energy,
    held fixed.  There are two schedules, which are the same for one step of each network:

    ``nested``
        the authors': ``task_steps`` times, ``energy_steps`` of the energy and then one of the task net.
        Every step has a prediction, candidates and dropout of its own.
    ``grouped``
        ``energy_steps`` of the energy, then ``task_steps`` of the task net.  Each network reads the other's
        batch once, and the candidates of all energy steps are drawn at once: less work, on older predictions.

    Without ``energy_steps`` the energy is not trained: any scorer of outputs then is a loss.  After some
    losses the task net descends a function of the energy; see `EnergyLoss.task_objective`.

    >>> from lossnet import MultiLabel, energies, nets
    >>> energy = energies.Sum(nets.MLP(4, hidden=8, layers=1), energies.Local(8, labels=3))
    >>> task_net = nets.MLP(4, hidden=8, layers=1, outputs=3)
    >>> method = SEAL(task_net, energy, MultiLabel(3), energy_steps=2, task_steps=2)
    >>> batch = Batch(torch.zeros(5, 4), torch.ones(5, 3))
    >>> [update.network for update in method.updates(batch)]
    ['energy', 'energy', 'task_net', 'energy', 'energy', 'task_net']
    >>> method.schedule = "grouped"
    >>> [update.network for update in method.updates(batch)]
    ['energy', 'energy', 'task_net', 'task_net']
    """

    stackable = True
    partly_known = True
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
        schedule: Schedule = "nested",
    ) -> None:
        super().__init__(task_net, space)
        self.energy = energy
        self.loss = loss or NCE()
        self.task_loss = task_loss or TaskLoss()
        self.energy_steps = energy_steps
        self.task_steps = task_steps
        self.schedule = schedule

    def stages(self) -> tuple[Stage, ...]:
        if not self.energy_steps:
            return (Stage("task net", ("task_net",), self.updates, self.predict),)
        return (Stage("joint", ("energy", "task_net"), self.updates, self.predict),)

    def updates(self, batch: Batch) -> Iterator[Update]:
        if self.schedule == "grouped":
            if self.energy_steps:
                yield from self.energy_updates(batch)
            yield from self.task_updates(batch)
            return
        for _ in range(self.task_steps):
            for _ in range(self.energy_steps):
                yield from self.explicit_updates(batch, 1)
            yield self.task_update(batch, self.task_energy(batch))

    def energy_updates(self, batch: Batch) -> Iterator[Update]:
        """Yield a group of the energy's steps against the present task net."""
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
        """Yield a group of the task net's steps against the energy, held fixed.

        ``objective`` makes of the energy and the truth what takes the energy's place in the task loss.
        """
        energy = self.task_energy(batch)
        if objective is not None:
            energy = objective(energy, batch.y)
        for _ in range(self.task_steps):
            yield self.task_update(batch, energy)

    def task_energy(self, batch: Batch) -> EnergyFunction:
        """Return what stands for the energy in the task loss, with the inputs encoded and held fixed."""
        with torch.no_grad():
            return self.loss.task_objective(self.energy.at(batch.x, batch.facts))

    def task_update(self, batch: Batch, energy: EnergyFunction) -> Update:
        """Return one step of the task net against what stands for the energy."""
        with self.energy.frozen(but=self.task_net.parameters()):
            return Update("task_net", self.task_loss(self.prediction(batch), batch.y, energy, batch.weight))


S = TypeVar("S", bound=SEAL)


def built(parts: Parts, method: type[S]) -> S:
    """Return SEAL, or a method like it, from its parts; an energy that is frozen takes no steps."""
    made = parts.make(method)
    if not any(parameter.requires_grad for parameter in made.energy.parameters()):
        made.energy_steps = 0
    return made


SPEC = MethodSpec(
    "seal",
    SEAL,
    "energy and task net trained in turn",
    losses=named(*ENERGY_LOSSES),
    build=lambda parts: built(parts, SEAL),
    frozen_energy=True,
    portfolio=("nce",),
)
