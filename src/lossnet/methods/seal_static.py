"""SEAL-static: the energy first, then the task net (Lee et al. 2022)."""

from __future__ import annotations

from functools import partial

from torch import nn

from lossnet.losses import TaskLoss
from lossnet.methods.base import EnergyMethod, Stage
from lossnet.methods.seal import SEAL
from lossnet.spaces import Space

__all__ = ["SEALStatic"]


class SEALStatic(SEAL):
    """Trains an energy by itself, freezes it, and trains a task net on the task loss (SEAL Eq. 3).

    How the energy is trained is the teacher's business: `SPEN` (margin), `DVN` (regression) or
    `NCEEnergy` (NCE).

    >>> from lossnet.energies import Local, Sum
    >>> from lossnet.methods import DVN
    >>> from lossnet.nets import MLP
    >>> from lossnet.spaces import MultiLabel
    >>> space = MultiLabel(3)
    >>> teacher = DVN(Sum(MLP(4, hidden=8, layers=1), Local(8, labels=3)), space)
    >>> method = SEALStatic(MLP(4, hidden=8, layers=1, outputs=3), teacher, space)
    >>> [stage.networks for stage in method.stages()]
    [('energy',), ('task_net',)]
    """

    def __init__(
        self,
        task_net: nn.Module,
        teacher: EnergyMethod,
        space: Space,
        task_loss: TaskLoss | None = None,
        task_steps: int = 1,
    ) -> None:
        super().__init__(
            task_net,
            teacher.energy,
            space,
            task_loss=task_loss,
            energy_steps=0,
            task_steps=task_steps,
        )
        # The teacher's networks become ours under their own names; the teacher itself only schedules them.
        for name, network in teacher.named_children():
            self.add_module(name, network)
        self._teacher_stages = teacher.stages()

    def stages(self) -> tuple[Stage, ...]:
        updates = partial(self.task_updates, task_loss=self.task_loss)
        return (*self._teacher_stages, Stage("task net", ("task_net",), updates, self.predict))
