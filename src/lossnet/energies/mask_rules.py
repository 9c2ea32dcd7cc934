"""Words for what is known of masks: how large the foreground is, where it is, whether it hangs together.

Candidates are ``(batch, K, height, width)``.  Penalties count pixels, pairs of pixels or pieces.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lossnet.energies.rules import Penalties, Rule, RuleError, fact_of


def area(least: float = 0.0, most: float = 1.0, fact: str | None = None, weight: float = math.inf) -> Rule:
    """Return the rule that the foreground is between ``least`` and ``most`` of the image, from 0 to 1.

    With a ``fact``, the bounds of each image are facts of that name, ``(batch, 2)``, or one number for both;
    where they are NaN nothing is known.  The penalty is the number of pixels too many or too few.

    >>> half = area(least=0.5, weight=1.0)
    >>> half(torch.zeros(1, 2, 2), torch.tensor([[[[1.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]]]))
    tensor([[0., 2.]])
    """
    if not 0 <= least <= most <= 1:
        raise ValueError(f"area is a share of the image, least ≤ most, from 0 to 1: not {least} to {most}")

    def penalties(x: Any, y: Tensor, facts: Any) -> Tensor:
        pixels = y.shape[-2] * y.shape[-1]
        bounds = y.new_tensor([least, most]).expand(len(y), 2)
        if fact is not None:
            bounds = fact_of("area", facts, fact, y).reshape(len(y), -1).expand(len(y), 2)
        low, high = (pixels * bounds).unsqueeze(1).unbind(-1)
        count = y.flatten(2).sum(-1)
        return ((low - count).clamp(min=0) + (count - high).clamp(min=0)).nan_to_num(0)

    return _of_masks(penalties, weight, "area")


def inside(fact: str | None = None, weight: float = math.inf) -> Rule:
    """Return the rule that the foreground is inside a box, a fact of each image.

    A box is ``(top, left, bottom, right)`` in pixels, the last two excluded, ``(batch, 4)``; where it is NaN
    nothing is known.  The penalty is the number of pixels outside.

    >>> box = torch.tensor([[0, 0, 1, 2]])
    >>> inside(weight=1.0).at(None, box)(torch.ones(1, 1, 2, 2))
    tensor([[2.]])
    """

    def penalties(x: Any, y: Tensor, facts: Any) -> Tensor:
        box = fact_of("inside", facts, fact, y)
        if box.shape != (len(y), 4):
            raise RuleError("inside", f"reads boxes (top, left, bottom, right), not {tuple(box.shape)}")
        rows, columns = (torch.arange(size, device=y.device) for size in y.shape[-2:])
        top, left, bottom, right = box.reshape(len(y), 4, 1).unbind(1)
        across = ~((columns < left) | (columns >= right))  # true where the box is NaN
        down = ~((rows < top) | (rows >= bottom))
        within = (down.unsqueeze(2) & across.unsqueeze(1)).unsqueeze(1)
        return y.masked_fill(within, 0).flatten(2).sum(-1)

    return _of_masks(penalties, weight, "inside")


def smooth(weight: float = 0.1) -> Rule:
    """Return the rule that neighbouring pixels are alike; the penalty counts pairs that differ.

    >>> smooth(weight=1.0)(torch.zeros(1, 2, 2), torch.tensor([[[[1.0, 1.0], [0.0, 0.0]]]]))
    tensor([[2.]])
    """

    def penalties(x: Any, y: Tensor, facts: Any) -> Tensor:
        return sum((y.diff(dim=side).abs().flatten(2).sum(-1) for side in (-2, -1)), y.new_zeros(y.shape[:2]))

    return _of_masks(penalties, weight, "smooth")


def connected(pieces: int = 1, weight: float = math.inf) -> Rule:
    """Return the rule that the foreground has no more than ``pieces`` that do not touch, corners included.

    It counts pixels above 0.5, so that it has no gradient; the penalty is the number of pieces too many.

    >>> torn = torch.tensor([[[[1.0, 0.0, 1.0]], [[1.0, 1.0, 0.0]]]])
    >>> connected(weight=1.0)(torch.zeros(1, 1, 3), torn)
    tensor([[1., 0.]])
    """

    def penalties(x: Any, y: Tensor, facts: Any) -> Tensor:
        from scipy import ndimage  # takes a while to import

        masks = (y.detach() > 0.5).cpu().numpy()
        touching = ndimage.generate_binary_structure(2, 2)
        found = [[ndimage.label(mask, touching)[1] - pieces for mask in row] for row in masks]
        return torch.tensor(found, dtype=y.dtype, device=y.device).clamp(min=0)

    return _of_masks(penalties, weight, f"connected({pieces})")


def _of_masks(penalties: Penalties, weight: float, name: str) -> Rule:
    """Return a rule that refuses candidates that are no masks."""

    def checked(x: Any, y: Tensor, facts: Any) -> Any:
        if y.dim() != 4:
            what = "is for masks, candidates (batch, K, height, width)"
            raise RuleError(name, f"{what}, not of the shape {tuple(y.shape)}")
        return penalties(x, y, facts)

    return Rule(checked, weight, name)
