"""A network that reads what is known beside the input."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from lossnet.conditional.base import Conditional
from lossnet.conditional.known import combined
from lossnet.spaces import Space
from lossnet.trees import Tree

#: what marks of known values are multiplied by: they must be heard among many inputs
TOLD, RULED_OUT = 10.0, 1.0
#: the logit of a value that is known
_SURE = 30.0


def marks_of(space: Space, known: Tensor) -> Tensor:
    """Return what a network reads of known values: one set of marks for ones, another for zeros.

    Of sets, ``(batch, 2 · labels)``; of masks, ``(batch, 2, height, width)``; of tags, those that are ruled
    out, ``(batch, length, tags)``.

    >>> from lossnet.spaces import MultiLabel
    >>> marks_of(MultiLabel(2), torch.tensor([[1.0, torch.nan]]))
    tensor([[10.,  0.,  0.,  0.]])
    """
    zeros = (known == 0).to(known.dtype)
    if space.unit_dims:
        return zeros
    marks = torch.stack([TOLD * (known == 1).to(known.dtype), RULED_OUT * zeros], 1)
    return marks.flatten(1) if space.event_dims == 1 else marks


class Completing(nn.Module):
    """Logits from ``(x, known)``, where what is known has logits that say so.

    Cross-entropy is then the loss of what is not known alone.

    Args:
        net: from ``x`` and marks to logits.
        space: of outputs.

    >>> from lossnet.nets import MLP, MarkedMLP
    >>> from lossnet.spaces import MultiLabel
    >>> net = Completing(MarkedMLP(4, MLP(3, hidden=8, layers=1, outputs=2)), MultiLabel(2))
    >>> net((torch.zeros(1, 3), torch.tensor([[torch.nan, 0.0]])))[:, 1]
    tensor([-30.], grad_fn=<SelectBackward0>)
    """

    def __init__(self, net: nn.Module, space: Space) -> None:
        super().__init__()
        self.net, self.space = net, space

    def forward(self, x: tuple[Tree, Tensor]) -> Tensor:
        inputs, known = x
        logits: Tensor = self.net(inputs, marks_of(self.space, known))
        if self.space.unit_dims:
            return torch.where(known == 0, -_SURE, logits)
        return torch.where(known.isnan(), logits, _SURE * (2 * known - 1))


class NetworkConditional(Conditional):
    """`Completing` as an engine: one forward pass.

    Args:
        net: from ``(x, known)`` to logits.
        space: of outputs.
    """

    engine: ClassVar[str] = "network"

    def __init__(self, net: Completing, space: Space) -> None:
        super().__init__()
        self.net, self.space = net, space

    def marginals(self, x: Tree, relaxed: Tensor, known: Tensor, mask: Tensor | None = None) -> Tensor:
        return combined(self.space, self.space.relax(self.net((x, known)), mask), known)
