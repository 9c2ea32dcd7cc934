"""A damped outer product for the Hessian, inverted by Sherman and Morrison's identity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lossnet.hypergradient.base import Dot, Product, Solution, Solver

__all__ = ["RankOne"]


@dataclass(frozen=True)
class RankOne(Solver):
    """``(λI + g gᵀ)⁻¹ b = (b − g (gᵀb) / (λ + gᵀg)) / λ`` with the inner gradient ``g`` and ``λ = damping``.

    One of the approximations that the UAI supplement names (Remark 1) without saying which vector to take;
    ``g gᵀ`` is the empirical Fisher matrix of the batch taken as one example.  No products: the cheapest
    solver, and blind to curvature that the gradient does not show.

    Args:
        damping: ``λ``, above 0.

    >>> RankOne().solve(lambda v: v, torch.ones(2), gradient=torch.tensor([1.0, 0.0])).vector
    tensor([0.5000, 1.0000])
    """

    name: ClassVar[str] = "rank-one"
    needs_gradient: ClassVar[bool] = True
    damping: float = 1.0

    def __post_init__(self) -> None:
        if not self.damping > 0:
            raise ValueError(f"damping must be above 0, not {self.damping}: a rank-one matrix has no inverse")

    def solve(
        self,
        product: Product,
        vector: Tensor,
        gradient: Tensor | None = None,
        *,
        dot: Dot = torch.dot,
        largest: Tensor | None = None,
    ) -> Solution:
        if gradient is None:
            raise ValueError("RankOne.solve needs the inner gradient")
        share = dot(gradient, vector) / (self.damping + dot(gradient, gradient))
        return Solution(torch.addcmul(vector, gradient, -share) / self.damping)
