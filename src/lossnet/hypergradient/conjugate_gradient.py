"""Conjugate gradients, stopped where the curvature is not positive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from lossnet.hypergradient.base import Dot, Product, Solution, Solver, check_not_negative, inverse, norm

__all__ = ["ConjugateGradient"]


@dataclass(frozen=True)
class ConjugateGradient(Solver):
    """Conjugate gradients for ``(H + damping · I) v = b`` (Hestenes & Stiefel 1952).

    A direction without positive curvature ends the solve with the answer so far, as in Steihaug (1983); if it
    is the very first, the answer is ``b ‖b‖ / ‖Hb‖`` (steepest descent, as in Nocedal & Wright, Alg. 7.1,
    with a length that scales like ``H⁻¹``).  Directions flatter than ``√ε`` times the steepest seen count as
    flat: in this precision their curvature is noise.  All ``iterations`` products are made, since to leave
    the loop early would mean to wait for the device.

    The residual comes for free; ``curvature`` is the largest ``‖Hp‖ / ‖p‖`` seen, a lower bound.

    Args:
        iterations: products.
        tolerance: relative residual at which the answer is left as it is.
        damping: added to the diagonal of ``H``.

    >>> hessian = torch.diag(torch.tensor([1.0, 4.0]))
    >>> ConjugateGradient(iterations=2).solve(lambda v: hessian @ v, torch.ones(2)).vector
    tensor([1.0000, 0.2500])
    """

    name: ClassVar[str] = "conjugate-gradient"
    iterations: int = 5
    tolerance: float = 1e-10
    damping: float = 0.0

    @classmethod
    def with_products(cls, count: int) -> Self:
        return cls(iterations=count)

    def __post_init__(self) -> None:
        check_not_negative(tolerance=self.tolerance, damping=self.damping)
        if self.iterations < 1:
            raise ValueError(f"iterations must be 1 or more, not {self.iterations}")

    def solve(
        self,
        product: Product,
        vector: Tensor,
        gradient: Tensor | None = None,
        *,
        dot: Dot = torch.dot,
        largest: Tensor | None = None,
    ) -> Solution:
        flat = torch.finfo(vector.dtype).eps ** 0.5
        scale = norm(vector, dot)
        # A right-hand side of length 1, because squares of small gradients underflow in float32.
        residual = vector * inverse(scale)
        direction = residual.clone()  # in place from here: vectors may be large
        answer = torch.zeros_like(vector)
        squared = dot(residual, residual)
        steepest = torch.zeros_like(squared)
        active = squared > 0
        for index in range(self.iterations):
            image = product(direction)
            length = norm(direction, dot) if index else squared.sqrt()
            steepest = torch.maximum(steepest, norm(image, dot) * inverse(length))
            if self.damping:
                image = image.add(direction, alpha=self.damping)
            bend = dot(direction, image)
            positive = bend > flat * (steepest + self.damping) * length.square()
            step = torch.where(positive & active, squared * inverse(bend), 0.0)
            if index == 0:
                step = torch.where(positive, step, inverse(steepest + self.damping))
            answer.addcmul_(direction, step)
            residual.addcmul_(image, -step)
            del image
            previous, squared = squared, dot(residual, residual)
            active = active & positive & (squared > self.tolerance**2)
            turn = torch.where(active, squared * inverse(previous), 0.0)
            torch.addcmul(residual, direction, turn, out=direction)
        if self.damping:  # ``residual`` belongs to the damped system
            residual.add_(answer, alpha=self.damping)
        return Solution(answer.mul_(scale), steepest, norm(residual, dot))
