"""Gradients of weights as products of two thin matrices, which are multiplied where they are needed.

A layer's gradient is ``xᵀ δ`` of a batch's inputs and of the loss's slopes by its outputs.  With batches of
32 these are far smaller than their product, and what the optimizer's step of several networks costs is
reading and writing; so the product is never written.  Where inputs are mostly zeros, many are zero in all
of a batch: their weights get no gradient, and nobody needs them before the next batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Scaled", "Thin", "Used"]


@dataclass(frozen=True, eq=False)
class Used:
    """Inputs of ``R`` networks' batches, those first that are not zero in all of a batch."""

    #: ``(R, rows, inputs)``, zeros behind those that are used, and room up to a multiple of four
    x: Tensor
    #: which input is where, ``(R, inputs)``
    order: Tensor
    #: how many are used, ``(R,)``
    count: Tensor


@dataclass(frozen=True, eq=False)
class Thin:
    """The gradient ``leftᵀ right`` of a parameter of each of ``R`` networks, or the sum of ``right``'s rows.

    >>> Thin(torch.ones(1, 2, 4), torch.ones(1, 2, 1), torch.Size([3, 1])).dense().flatten()
    tensor([2., 2., 2.])
    """

    #: ``(R, rows, tall)``, with room up to a multiple of four
    left: Tensor | None
    #: ``(R, rows, wide)``
    right: Tensor
    #: that of the parameter
    shape: torch.Size
    #: whose columns the left ones are, in which order
    used: Used | None = None

    def dense(self) -> Tensor:
        """The gradient itself."""
        if self.left is None:
            return self.right.sum(1).view(self.shape)
        product = torch.bmm(self.left[..., : self.shape[-2]].mT, self.right)
        if self.used is not None:
            order = self.used.order.long().unsqueeze(2).expand_as(product)
            product = torch.zeros_like(product).scatter_(1, order, product)
        return product.view(self.shape)


@dataclass(frozen=True, eq=False)
class Scaled:
    """The gradient ``factor · values`` of a parameter of each of ``R`` networks.

    >>> Scaled(torch.ones(1, 2, 2), torch.tensor([3.0]), torch.Size([3, 1])).dense().flatten()
    tensor([3., 3., 3.])
    """

    #: ``(R, …)``, more than the parameter has behind those that it has
    values: Tensor
    #: ``(R,)``
    factor: Tensor
    #: that of the parameter
    shape: torch.Size

    def dense(self) -> Tensor:
        """The gradient itself."""
        size = self.shape.numel() // len(self.factor)
        return (self.values.flatten(1)[:, :size] * self.factor.unsqueeze(1)).view(self.shape)
