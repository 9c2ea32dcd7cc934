"""SEAL-static: the energy first, then the task net (Lee et al. 2022)."""

from __future__ import annotations

from torch import nn

from lossnet.losses import NCE, Margin, Regression, TaskLoss
from lossnet.methods import dvn, nce_energy, spen
from lossnet.methods.base import EnergyMethod, Stage
from lossnet.methods.seal import SEAL
from lossnet.methods.spec import MethodSpec, Parts, named
from lossnet.spaces import Space


class SEALStatic(SEAL):
    """An energy trained by itself and frozen, then a task net trained on the task loss (SEAL Eq. 3).

    The ``teacher`` trains the energy: `SPEN` (margin), `DVN` (regression) or `NCEEnergy` (NCE).  An energy
    that is frozen from the start is not trained.  The task net descends what the teacher's loss makes of the
    energy: after a `DVN`, the predicted score ``−σ(−E)``.

    >>> from lossnet import MultiLabel, energies, nets
    >>> energy = energies.Sum(nets.MLP(4, hidden=8, layers=1), energies.Local(8, labels=3))
    >>> teacher, space = dvn.DVN(energy, MultiLabel(3)), MultiLabel(3)
    >>> method = SEALStatic(nets.MLP(4, hidden=8, layers=1, outputs=3), teacher, space)
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
        super().__init__(task_net, teacher.energy, space, teacher.loss, task_loss, 0, task_steps)
        # The teacher's networks become ours under their own names; the teacher itself only schedules them.
        for name, network in teacher.named_children():
            self.add_module(name, network)
        trained = any(parameter.requires_grad for parameter in self.energy.parameters())
        self._teacher_stages = teacher.stages() if trained else ()

    def stages(self) -> tuple[Stage, ...]:
        return (*self._teacher_stages, Stage("task net", ("task_net",), self.task_updates, self.predict))


#: how the energy is trained with each loss
_TEACHERS = {NCE.name: nce_energy.SPEC, Margin.name: spen.SPEC, Regression.name: dvn.SPEC}
_INFERENCE = ("inference_lr", "inference_steps")


def _build(parts: Parts) -> SEALStatic:
    return parts.make(SEALStatic, task_net=parts.task_net(), teacher=parts.make(_TEACHERS[parts.loss].method))


SPEC = MethodSpec(
    "seal-static",
    SEALStatic,
    "an energy trained first, frozen, then used as a loss",
    losses=named(NCE, Margin, Regression),
    rates={
        "task_net": "task_lr",
        **{name: rate for teacher in _TEACHERS.values() for name, rate in teacher.rates.items()},
    },
    search=("task_dropout", "energy_dropout", "energy_weight", "task_steps"),
    build=_build,
    loss_search={Margin.name: _INFERENCE, Regression.name: _INFERENCE},
)
