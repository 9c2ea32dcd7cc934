"""The largest absolute eigenvalue, from a power iteration carried from one call to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lossnet.hypergradient.base import Product, check_not_negative, inverse

__all__ = ["Curvature", "Step"]

#: a Neumann step: a number, or ``1 / |λ|max``
Step = float | Literal["auto"]


@dataclass(eq=False)
class Curvature:
    """Estimates ``|λ|max`` as ``‖Hv‖`` for a unit vector ``v`` that follows ``v ← Hv / ‖Hv‖``.

    Never above the true value; converges to it also where the largest eigenvalues are negative or come as
    ``±λ``.  The Hessian changes little between training steps, so one product for each update follows it.
    A start from a fixed seed leaves the program's random numbers alone.

    Args:
        first: products of the first call, when there is no vector to carry on from.
        vector: the state, ``(n,)``; a checkpoint stores it.

    >>> curvature = Curvature(first=20)
    >>> curvature.update(lambda v: torch.tensor([1.0, -3.0]) * v, torch.zeros(2))
    tensor(3.)
    """

    first: int = 5
    vector: Tensor | None = None

    def __post_init__(self) -> None:
        if self.first < 1:
            raise ValueError(f"first must be 1 or more, not {self.first}")

    def update(self, product: Product, like: Tensor) -> Tensor:
        """``|λ|max``, ``()``, after one product (the first call: ``first``); ``like`` is any ``(n,)``."""
        vector, rounds = self.vector, 1
        if vector is None or vector.shape != like.shape or vector.device != like.device:
            generator = torch.Generator(like.device).manual_seed(0)
            vector = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
            vector /= torch.linalg.vector_norm(vector)
            rounds = self.first
        for _ in range(rounds):
            image = product(vector.to(like.dtype))
            size: Tensor = torch.linalg.vector_norm(image)
            # A flat or diverged Hessian says nothing about direction: keep the one we have.
            usable = (inverse(size) > 0) & size.isfinite()
            # In place: a captured step writes to this very tensor.
            vector.copy_(torch.where(usable, image * inverse(size), vector))
        self.vector = vector  # only now: a product may fail and be made in another way
        return size


def step_length(step: Step, damping: float, largest: Tensor | None, like: Tensor) -> Tensor:
    """The step ``α``, ``()``; ``auto`` needs the largest ``|λ|``."""
    if step == "auto":
        assert largest is not None
        return inverse(largest + damping)
    return torch.full((), step, dtype=like.dtype, device=like.device)


def check_step(step: Step, damping: float) -> None:
    """Raises for a step or a damping that means nothing."""
    check_not_negative(damping=damping)
    if step != "auto" and not (isinstance(step, int | float) and step > 0):
        raise ValueError(f'step must be a positive number or "auto", not {step!r}')
