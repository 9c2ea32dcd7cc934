"""The dense Hessian, for small problems and as a yardstick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lossnet.hypergradient.base import Dot, Product, Solution, Solver, check_not_negative, inverse

__all__ = ["Exact"]


@dataclass(frozen=True)
class Exact(Solver):
    """``(H + damping · I)⁺ b`` from the dense Hessian: one product for each parameter, cubic time.

    Eigenvalues below ``n ε`` times the largest count as 0, so that a singular ``H`` gives the least-squares
    answer of least norm.  Indefinite ``H`` is inverted as it is.

    Args:
        damping: added to the diagonal of ``H``.

    >>> hessian = torch.diag(torch.tensor([2.0, 0.0, -1.0]))
    >>> Exact().solve(lambda v: hessian @ v, torch.ones(3)).vector
    tensor([ 0.5000,  0.0000, -1.0000])
    """

    needs_parameters: ClassVar[bool] = True
    damping: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative(damping=self.damping)

    def solve(
        self,
        product: Product,
        vector: Tensor,
        gradient: Tensor | None = None,
        *,
        dot: Dot = torch.dot,
        largest: Tensor | None = None,
    ) -> Solution:
        size = len(vector)
        units = torch.eye(size, dtype=vector.dtype, device=vector.device)
        hessian = torch.stack([product(unit) for unit in units])
        with torch.autocast(vector.device.type, enabled=False):
            # Rounding, or finite differences, leave it a little unsymmetric.
            values, vectors = torch.linalg.eigh((hessian + hessian.T) / 2)
            damped = values + self.damping
            cutoff = size * torch.finfo(vector.dtype).eps * damped.abs().amax()
            scale = torch.where(damped.abs() > cutoff, inverse(damped), 0.0)
            answer = vectors @ (scale * (vectors.T @ vector))
        return Solution(answer, values.abs().amax())
