"""The interface of solvers, and the arithmetic that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

#: ``v ↦ Hv``, both ``(n,)``, for a symmetric ``H`` that need be neither definite nor regular
Product = Callable[[Tensor], Tensor]
#: the inner product of two ``(n,)``, in which ``H`` is symmetric
Dot = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class System:
    """The linear system ``H v = b``, as `Solver.solve` is given it."""

    product: Product
    vector: Tensor
    gradient: Tensor | None = None
    dot: Dot = torch.dot

    def norm(self, vector: Tensor) -> Tensor:
        """Return ``√(v · v)``, ``()``."""
        return self.dot(vector, vector).clamp(min=0).sqrt()  # rounding may leave a little less than 0


@dataclass(frozen=True)
class Solution:
    """The answer of a solver.

    Attributes:
        vector: ``(n,)``, in place of ``H⁻¹ b``.
        curvature: the solver's estimate of the largest ``|λ|`` of ``H``, ``()``, where it made one.
        residual: ``‖Hv − b‖ / ‖b‖``, ``()``, where it costs no further product.
        terms: of a series, those that were summed beyond the first, ``()``: fewer than asked for where it
            ended early.
    """

    vector: Tensor
    curvature: Tensor | None = None
    residual: Tensor | None = None
    terms: Tensor | None = None


class Solver(ABC):
    """Base class of approximations of ``H⁻¹ b`` from products with ``H``; damping adds ``damping · I`` to it.

    Loops have a fixed length and no solver reads a value back from the device, so that a step can be
    captured.
    """

    #: what the command line calls it
    name: ClassVar[str]
    #: the argument that is the number of Hessian products, beyond those of the step length, if it makes any
    product_count: ClassVar[str] = ""
    #: whether `solve` must be given the inner gradient
    needs_gradient: ClassVar[bool] = False
    #: whether `solve` looks at single parameters; it is then given all of them, and `torch.dot`
    needs_parameters: ClassVar[bool] = False

    @classmethod
    def with_products(cls, count: int) -> Self:
        """Return a solver of ``count`` Hessian products, if it makes any."""
        return cls(**{cls.product_count: count} if cls.product_count else {})

    def solve(
        self,
        product: Product,
        vector: Tensor,
        gradient: Tensor | None = None,
        *,
        dot: Dot = torch.dot,
    ) -> Solution:
        """Approximate ``H⁻¹ vector``.

        Args:
            product: ``v ↦ Hv``.
            vector: ``b``, ``(n,)``.
            gradient: the inner gradient ``g``, ``(n,)``; only solvers with `needs_gradient` read it.
            dot: the inner product of vectors.
        """
        return self._solve(System(product, vector, gradient, dot))

    @abstractmethod
    def _solve(self, system: System) -> Solution: ...


def inverse(value: Tensor) -> Tensor:
    """Return ``1 / value``, and 0 where that would overflow or is undefined, as in a pseudo-inverse.

    >>> inverse(torch.tensor([2.0, 0.0, float("nan")]))
    tensor([0.5000, 0.0000, 0.0000])
    """
    smallest = torch.finfo(value.dtype).tiny ** 0.5
    return torch.where(value.abs() > smallest, value.reciprocal(), 0.0)


def check_at_least(lowest: int, **values: float) -> None:
    """Raise a ValueError for a setting below ``lowest``."""
    for name, value in values.items():
        if not value >= lowest:
            raise ValueError(f"{name} must be {lowest} or more, not {value}")
