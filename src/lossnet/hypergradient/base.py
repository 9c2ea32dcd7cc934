"""What every solver can do, and the little arithmetic that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

__all__ = ["Dot", "Product", "Solution", "Solver", "inverse"]

#: ``v ↦ Hv``, both ``(n,)``, for a symmetric ``H`` that need be neither definite nor regular
Product = Callable[[Tensor], Tensor]
#: the inner product of two ``(n,)``, in which ``H`` is symmetric
Dot = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Solution:
    """What a solver found.

    Attributes:
        vector: ``(n,)``, in place of ``H⁻¹ b``.
        curvature: the solver's estimate of the largest ``|λ|`` of ``H``, ``()``, where it made one.
        residual: ``‖Hv − b‖ / ‖b‖``, ``()``, where it costs no further product.
    """

    vector: Tensor
    curvature: Tensor | None = None
    residual: Tensor | None = None


class Solver(ABC):
    """Approximates ``H⁻¹ b`` from products with ``H``; damping puts ``H + damping · I`` in its place.

    Loops have a fixed length and no solver reads a value back from the device, so that a step can be
    captured.
    """

    #: what the command line calls it
    name: ClassVar[str]
    #: whether `solve` must be given the inner gradient
    needs_gradient: ClassVar[bool] = False
    #: whether `solve` looks at single parameters; it is then given all of them, and `torch.dot`
    needs_parameters: ClassVar[bool] = False

    @classmethod
    def with_products(cls, count: int) -> Self:
        """Return a solver that makes so many Hessian products, if it makes any beyond its step length's."""
        return cls()

    @abstractmethod
    def solve(
        self,
        product: Product,
        vector: Tensor,
        gradient: Tensor | None = None,
        *,
        dot: Dot = torch.dot,
        largest: Tensor | None = None,
    ) -> Solution:
        """Approximates ``H⁻¹ vector``.

        Args:
            product: ``v ↦ Hv``.
            vector: ``b``, ``(n,)``.
            gradient: the inner gradient ``g``, ``(n,)``; only solvers with `needs_gradient` read it.
            dot: the inner product of vectors.
            largest: what `estimate` found, if it was asked before.
        """

    def estimate(self, product: Product, like: Tensor) -> Tensor | None:
        """``|λ|max``, ``()``, from a state kept between calls, where the solver has one.

        The state is a vector of all parameters, and so must be those of ``product`` and ``like``, ``(n,)``.
        """
        return None


def norm(vector: Tensor, dot: Dot) -> Tensor:
    """``√(v · v)``, ``()``."""
    return dot(vector, vector).clamp(min=0).sqrt()  # rounding may leave a little less than 0


def inverse(value: Tensor) -> Tensor:
    """``1 / value``, and 0 where that would overflow or is undefined, as in a pseudo-inverse.

    >>> inverse(torch.tensor([2.0, 0.0, float("nan")]))
    tensor([0.5000, 0.0000, 0.0000])
    """
    smallest = torch.finfo(value.dtype).tiny ** 0.5
    return torch.where(value.abs() > smallest, value.reciprocal(), 0.0)


def check_not_negative(**values: float) -> None:
    """Raises for a setting below 0."""
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name} must be 0 or more, not {value}")
