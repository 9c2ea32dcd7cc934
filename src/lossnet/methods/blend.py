"""The average of trained methods' probabilities, which method ``auto`` may choose."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from lossnet.methods.base import Method, Stage
from lossnet.trees import Tree

if TYPE_CHECKING:
    from lossnet.decoding import Calibration


class Blend(Method):
    """The mean of several methods' calibrated probabilities, ``1/M Σ_m p_m(y | x)``.

    It has the members' networks that predict, is not trained itself, and costs what all of them cost.

    Args:
        members: trained methods with outputs of the same space.
        calibrations: of their outputs, one each.

    >>> from lossnet import MultiLabel, nets
    >>> from lossnet.decoding import Calibration
    >>> from lossnet.methods import CrossEntropy
    >>> members = [CrossEntropy(nets.MLP(4, hidden=8, layers=1, outputs=3), MultiLabel(3)) for _ in range(2)]
    >>> blend = Blend(members, [Calibration(), Calibration((0.5,))])
    >>> blend.predict(torch.rand(5, 4)).shape
    torch.Size([5, 3])
    """

    predictors = ("members",)

    def __init__(self, members: Sequence[Method], calibrations: Sequence[Calibration]) -> None:
        super().__init__()
        if len(members) != len(calibrations) or not members:
            raise ValueError(f"{len(members)} members need as many calibrations, not {len(calibrations)}")
        self.space = members[0].space
        self.members = nn.ModuleList(map(_predicting, members))
        self.calibrations = tuple(calibrations)
        self.feed_forward = all(member.feed_forward for member in members)

    def stages(self) -> tuple[Stage, ...]:
        raise ValueError("a blend has no training of its own; train its members")

    def predict(self, x: Tree, mask: Tensor | None = None) -> Tensor:
        members = cast(Sequence[Method], self.members)
        predictions = [
            calibration(self.space, member.predict(x, mask))
            for member, calibration in zip(members, self.calibrations, strict=True)
        ]
        return torch.stack(predictions).mean(0)


def _predicting(method: Method) -> Method:
    """Return a method that has only the networks that predict, which it shares with the given one."""
    method = copy.copy(method)
    method._modules = {name: method._modules[name] for name in method.predictors}
    method._buffers = {}
    return method
