"""The Hessian's diagonal, from random probes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from lossnet.hypergradient.base import Dot, Product, Solution, Solver, check_not_negative, inverse

__all__ = ["Diagonal"]


@dataclass(frozen=True)
class Diagonal(Solver):
    """``b / (|d| + damping)`` with ``d = mean z ⊙ Hz`` over random signs ``z`` (Bekas et al. 2007, Eq. 1).

    ``d`` estimates the diagonal without bias and is exact, with one sample, for a diagonal ``H``.  The
    absolute value keeps directions of negative curvature going downhill.  Signs come from
    torch's own random numbers.

    Args:
        samples: probes, each one product.
        floor: entries of ``|d|`` below this part of their root mean square count as that much, because a
            small estimate is mostly noise.
        damping: added to ``|d|``.

    >>> hessian = torch.diag(torch.tensor([1.0, -4.0]))
    >>> Diagonal(samples=1).solve(lambda v: hessian @ v, torch.ones(2)).vector
    tensor([1.0000, 0.2500])
    """

    name: ClassVar[str] = "diagonal"
    needs_parameters: ClassVar[bool] = True
    samples: int = 5
    floor: float = 0.01
    damping: float = 0.0

    @classmethod
    def with_products(cls, count: int) -> Self:
        return cls(samples=count)

    def __post_init__(self) -> None:
        check_not_negative(floor=self.floor, damping=self.damping)
        if self.samples < 1:
            raise ValueError(f"samples must be 1 or more, not {self.samples}")

    def solve(
        self,
        product: Product,
        vector: Tensor,
        gradient: Tensor | None = None,
        *,
        dot: Dot = torch.dot,
        largest: Tensor | None = None,
    ) -> Solution:
        total = torch.zeros_like(vector)
        for _ in range(self.samples):
            signs = torch.randint_like(vector, 2).mul_(2).sub_(1)
            total.addcmul_(signs, product(signs))
        size = (total / self.samples).abs()
        lowest = self.floor * size.square().mean().sqrt()
        return Solution(vector * inverse(torch.maximum(size, lowest) + self.damping))
