"""Pseudo-labels: take the teacher's best output for the truth where there is none (Lee 2013)."""

from __future__ import annotations

from torch import Tensor

from lossnet.losses import cross_entropy
from lossnet.methods.mean_teacher import SEARCH, MeanTeacher, build
from lossnet.methods.spec import MethodSpec
from lossnet.spaces import Batch, Prediction


class PseudoLabels(MeanTeacher):
    """`MeanTeacher` whose target is the teacher's output nearest to its probabilities, not these.

    >>> import torch
    >>> from lossnet import MultiLabel, nets
    >>> method = PseudoLabels(nets.MLP(4, hidden=8, layers=1, outputs=3), MultiLabel(3))
    >>> method.target(Prediction(MultiLabel(3), torch.tensor([[0.2, -3.0, 1.0]])), Batch(None))
    tensor([[1., 0., 1.]])
    """

    partly_known = True

    def target(self, teacher: Prediction, batch: Batch) -> Tensor:
        return self.space.decode(teacher.relaxed)


SPEC = MethodSpec(
    "pseudo-labels",
    PseudoLabels,
    "few labels: take its own best output for the truth where there is none",
    losses={"none": cross_entropy},
    rates={"student": "task_lr"},
    search=SEARCH,
    build=build,
)
