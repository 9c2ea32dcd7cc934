"""Products with second derivatives as differences of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lossnet.hypergradient.base import inverse
from lossnet.hypergradient.double_backward import Derivatives, Products
from lossnet.hypergradient.evaluation import Layout, RandomState, evaluate, first_order
from lossnet.hypergradient.layers import Place

__all__ = ["FiniteDifference"]


@dataclass(frozen=True)
class FiniteDifference(Products):
    """``∂ω (∂θ L · v) ≈ [∂ω L(θ + δv) − ∂ω L(θ − δv)] / 2δ`` with ``δ = epsilon / ‖v‖`` (UAI suppl. §1.1).

    Two gradients for each product and no double backward; the error is ``O(epsilon²)``.  The inner loss is
    evaluated again and again, so it must be a callable.  Each evaluation sees the same random numbers, hence
    the same dropout mask, and leaves module buffers alone; parameters get their very values back.

    Args:
        epsilon: length of the change of the parameters; the cube root of the machine precision by default,
            where truncation and rounding balance.  Take more (0.1) under autocast.
        draws: whether the inner loss draws random numbers.  If so, it cannot be captured in a CUDA graph,
            where the random state cannot be read.

    >>> weight = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
    >>> derivatives = FiniteDifference(epsilon=1e-3).of(lambda: (weight**3).sum(), [weight])
    >>> derivatives.along([torch.ones_like(weight)], [weight])[0].round(decimals=6)
    tensor([ 6., 12.], dtype=torch.float64)
    """

    epsilon: float | None = None
    draws: bool = True

    def __post_init__(self) -> None:
        if self.epsilon is not None and not self.epsilon > 0:
            raise ValueError(f"epsilon must be above 0, not {self.epsilon}")

    def of(self, inner: Tensor | Callable[[], Tensor], parameters: Sequence[Tensor]) -> Derivatives:
        if not callable(inner):
            raise ValueError(
                "finite differences evaluate the inner loss again: pass a callable that returns it"
            )
        return _Differences(inner, parameters, self.epsilon, self.draws)


class _Differences(Derivatives):
    def __init__(
        self, inner: Callable[[], Tensor], parameters: Sequence[Tensor], epsilon: float | None, draws: bool
    ) -> None:
        self.inner = inner
        self.layout = Layout(parameters)
        self.epsilon = epsilon or torch.finfo(self.layout.dtype).eps ** (1 / 3)
        self.draws = draws
        self.random: RandomState | None = None

    def gradient(self) -> tuple[Tensor, ...]:
        return self._gradients(self.layout.parameters)

    def along(self, direction: Sequence[Tensor], targets: Sequence[Place]) -> tuple[Tensor, ...]:
        vector = self.layout.flatten(direction)
        length = torch.linalg.vector_norm(vector)
        change = self.layout.split(vector * (self.epsilon * inverse(length)))
        parameters = self.layout.parameters
        start = [parameter.detach().clone() for parameter in parameters]
        try:
            self._move([value + part for value, part in zip(start, change, strict=True)])
            ahead = self._gradients(targets)
            self._move([value - part for value, part in zip(start, change, strict=True)])
            behind = self._gradients(targets)
        finally:
            self._move(start)
        scale = length / (2 * self.epsilon)
        return tuple(((a - b) * scale).to(a.dtype) for a, b in zip(ahead, behind, strict=True))

    def _gradients(self, targets: Sequence[Place]) -> tuple[Tensor, ...]:
        if not self.draws:
            return first_order(evaluate(self.inner, "inner"), targets)
        now = RandomState(self.layout.parameters[0])
        if self.random is None:  # the first evaluation goes on from here, as if it were the only one
            self.random = now
            return first_order(evaluate(self.inner, "inner"), targets)
        self.random.restore()
        found = first_order(evaluate(self.inner, "inner"), targets)
        now.restore()  # a solver may draw numbers too, and must not get the same ones again
        return found

    def _move(self, values: Sequence[Tensor]) -> None:
        # Through ``data`` and in place: graphs made before stay valid, cuDNN's packed weights stay packed.
        for parameter, value in zip(self.layout.parameters, values, strict=True):
            parameter.data.copy_(value)
        torch.clear_autocast_cache()  # it may hold the weights of before in half precision
