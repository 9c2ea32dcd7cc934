"""Mean teacher whose targets an energy corrects (ours)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lossnet.energies import Energy
from lossnet.losses import NCE, EnergyLoss, Ranking, TaskLoss
from lossnet.methods.base import Stage, Update
from lossnet.methods.mean_teacher import SEARCH, MeanTeacher
from lossnet.methods.seal import energy_losses
from lossnet.methods.spec import MethodSpec, Parts, named
from lossnet.settings import Settings
from lossnet.spaces import Batch, Prediction, Space


class CorrectedTeacher(MeanTeacher):
    """`MeanTeacher` whose target is ``relax(z − η ∂E/∂y)`` at the teacher's ``y = relax(z)``.

    The energy learns from labels, by a contrastive loss against the student's samples.  It corrects most
    where it knows something else than the network does: an energy of tags that sees the shapes of tokens and
    not their words (``energy_words``) carries over to words that no label has shown.

    Args:
        energy: is trained beside the student.
        loss: of the energy.
        step: ``η``; 0 leaves `MeanTeacher`.

    The other arguments are those of `MeanTeacher`.

    >>> from lossnet import MultiLabel, energies, nets
    >>> energy = energies.Sum(nets.MLP(4, hidden=8, layers=1), energies.Local(8, labels=3))
    >>> method = CorrectedTeacher(nets.MLP(4, hidden=8, layers=1, outputs=3), energy, MultiLabel(3))
    >>> batch = Batch(torch.zeros(2, 4), torch.ones(2, 3), unlabelled=Batch(torch.ones(5, 4)))
    >>> [update.network for update in method.updates(batch)]
    ['energy', 'student']
    """

    def __init__(
        self,
        task_net: nn.Module,
        energy: Energy,
        space: Space,
        loss: EnergyLoss | None = None,
        task_loss: TaskLoss | None = None,
        settings: Settings | None = None,
        step: float = 0.5,
    ) -> None:
        super().__init__(task_net, space, task_loss, settings)
        self.energy, self.loss, self.step = energy, loss or NCE(), step

    def stages(self) -> tuple[Stage, ...]:
        networks = "energy", "student"
        return (Stage("joint", networks, self.updates, self.predict, averages=("task_net",)),)

    def updates(self, batch: Batch) -> Iterator[Update]:
        with torch.no_grad():
            prediction = Prediction(self.space, self.student(batch.x), batch.mask)
        for loss in energy_losses(self.energy, self.loss, batch, prediction, 1):
            yield Update("energy", loss)
        yield from super().updates(batch)

    def target(self, teacher: Prediction, batch: Batch) -> Tensor:
        with self.energy.frozen(), torch.enable_grad():
            y = teacher.relaxed.detach().requires_grad_()
            energy = self.energy.at(batch.x, batch.facts)(y.unsqueeze(1)).sum()
            (slope,) = torch.autograd.grad(energy, y)
        return self.space.relax(teacher.logits - self.step * slope, batch.mask)


def _build(parts: Parts) -> CorrectedTeacher:
    return parts.make(CorrectedTeacher, settings=parts.settings, step=parts.settings.correction)


SPEC = MethodSpec(
    "corrected-teacher",
    CorrectedTeacher,
    "few labels: mean-teacher, its targets corrected by an energy",
    losses=named(NCE, Ranking),
    rates={"energy": "energy_lr", "student": "task_lr"},
    search=(*SEARCH, "energy_dropout", "correction"),
    build=_build,
)
