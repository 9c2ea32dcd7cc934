"""The Neumann series of the inverse Hessian."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor

from lossnet.hypergradient.base import Dot, Product, Solution, check_not_negative, norm
from lossnet.hypergradient.curvature import Curvature, Step, Stepping

__all__ = ["Neumann"]


@dataclass(frozen=True)
class Neumann(Stepping):
    """``α Σ_{i≤terms} (I − αH)ⁱ b`` (UAI supplement §1.1, without ``α``; Lorraine et al. 2020).

    The series converges for positive definite ``H`` and ``α‖H‖ < 2``, and its relative residual is then at
    most ``‖I − αH‖^(terms + 1)``.  Along negative curvature, or with a step too long, terms grow instead:
    the sum ends before the first term longer than ``b``, so that ``‖v‖ ≤ α (terms + 1) ‖b‖`` always.
    `Identity` is the case of no terms; `ConjugateGradient` is more accurate for as many products where
    ``H`` is positive definite, and less predictable where it is not.

    Args:
        terms: products, beyond those of ``step="auto"``.
        step: ``α``; ``auto`` takes ``1 / (|λ|max + damping)``.
        damping: added to the diagonal of ``H``.
        curvature: what estimates ``|λ|max``; it lives in the solver, so keep the solver between steps.

    >>> hessian = torch.diag(torch.tensor([1.0, 0.5]))
    >>> Neumann(terms=2, step=1.0).solve(lambda v: hessian @ v, torch.ones(2)).vector
    tensor([1.0000, 1.7500])
    """

    name: ClassVar[str] = "neumann"
    terms: int = 5
    step: Step = "auto"
    damping: float = 0.0
    curvature: Curvature = field(default_factory=Curvature, repr=False, compare=False)

    @classmethod
    def with_products(cls, count: int) -> Self:
        return cls(terms=count)

    def __post_init__(self) -> None:
        check_not_negative(terms=self.terms)
        super().__post_init__()

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
        dtype = vector.dtype
        bound = norm(vector, dot) * (1 + torch.finfo(dtype).eps ** 0.5)
        term, total = vector.clone(), vector.clone()  # in place from here: vectors may be large
        going = torch.ones_like(step)
        for _ in range(self.terms):
            image = product(term)
            if self.damping:
                image = image.add(term, alpha=self.damping)
            # Once the sum has ended the term stands still, lest it overflow.
            term.addcmul_(image, -step * going)
            del image
            going = going * (norm(term, dot) <= bound).to(dtype)
            total.addcmul_(term, going)
        return Solution(total.mul_(step), largest)
