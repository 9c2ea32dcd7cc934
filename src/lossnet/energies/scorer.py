"""Any module that scores outputs, as an energy."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from lossnet.energies.base import Energy

__all__ = ["Scorer"]


class Scorer(Energy):
    """``E(x, y)`` computed by a module of somebody's own, pretrained or not: a reward model, a validator.

    The module maps inputs and candidates ``(batch, K, *event)``, relaxed or discrete, to ``(batch, K)``; low
    is good.  To teach a task net it must be differentiable in the candidates.

    >>> import torch
    >>> class Count(nn.Module):
    ...     def forward(self, x, y):
    ...         return (y.sum(-1) - 2) ** 2  # wants two labels
    >>> Scorer(Count())(torch.zeros(1, 4), torch.tensor([[[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]]))
    tensor([[0., 1.]])
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def encode(self, x: Any) -> Any:
        return x

    def evaluate(self, encoded: Any, y: Tensor) -> Tensor:
        energies: Tensor = self.module(encoded, y)
        if energies.shape != y.shape[:2]:
            what = f"the energy gives the shape {tuple(energies.shape)} for {y.shape[1]} candidates"
            raise ValueError(f"{what} of {len(y)} instances; it must be {tuple(y.shape[:2])}")
        return energies
