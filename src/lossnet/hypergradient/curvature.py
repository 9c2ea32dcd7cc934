"""The largest absolute eigenvalue, from a power iteration carried from one call to the next."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lossnet.hypergradient.base import Product, check_at_least, inverse

__all__ = ["Curvature"]


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
        check_at_least(1, first=self.first)

    def update(self, product: Product, like: Tensor) -> Tensor:
        """Return ``|λ|max``, ``()``, after one product (the first call: ``first``); ``like`` is any ``(n,)``.

        For several problems side by side, ``like`` is ``(problems, n)`` and the answer ``(problems, 1)``.
        """
        vector, rounds = self.vector, 1
        if vector is None or vector.shape != like.shape or vector.device != like.device:
            generator = torch.Generator(like.device).manual_seed(0)
            vector = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
            vector /= torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
            rounds = self.first
        for _ in range(rounds):
            image = product(vector.to(like.dtype))
            size: Tensor = torch.linalg.vector_norm(image, dim=-1, keepdim=image.dim() > 1)
            # A flat or diverged Hessian says nothing about direction: keep the one we have.
            usable = (inverse(size) > 0) & size.isfinite()
            # In place: a captured step writes to this very tensor, and must not ask for a value.
            if size.dim() or size.device.type != "cpu":
                vector.copy_(torch.where(usable, image * inverse(size), vector))
            elif usable:
                torch.mul(image, inverse(size), out=vector)
        self.vector = vector  # only now: a product may fail and be made in another way
        return size
