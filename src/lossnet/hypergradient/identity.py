"""A multiple of the identity for the inverse Hessian."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lossnet.hypergradient.base import Dot, Product, Solution
from lossnet.hypergradient.curvature import Curvature, Step, Stepping

__all__ = ["Identity"]


@dataclass(frozen=True)
class Identity(Stepping):
    """``α b``: `Neumann` without terms, one inner step of gradient descent (Luketina et al. 2016).

    Args:
        step: ``α``; ``auto`` takes ``1 / (|λ|max + damping)``.
        damping: added to the diagonal of ``H``; counts for ``step="auto"`` only.
        curvature: what estimates ``|λ|max``.

    >>> Identity(step=0.5).solve(lambda v: v, torch.ones(2)).vector
    tensor([0.5000, 0.5000])
    """

    name: ClassVar[str] = "identity"
    step: Step = "auto"
    damping: float = 0.0
    curvature: Curvature = field(default_factory=Curvature, repr=False, compare=False)

    def solve(
        self,
        product: Product,
        vector: Tensor,
        gradient: Tensor | None = None,
        *,
        dot: Dot = torch.dot,
        largest: Tensor | None = None,
    ) -> Solution:
        step, largest = self.length(product, vector, largest)
        return Solution(step * vector, largest)
