"""Products with second derivatives: exact, by differentiating the gradient, or differences of gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from lossnet.hypergradient.base import inverse
from lossnet.hypergradient.evaluation import Layout, derivatives, evaluate
from lossnet.hypergradient.layers import Place


@dataclass(frozen=True)
class Derivatives:
    """First and second derivatives of an inner loss at one point; vectors are tuples like its parameters.

    ``gradient()`` is ``∂θ L``, and ``along(v, targets)`` is ``∂ω (∂θ L · v)`` for each target ``ω``: ``Hv``
    for ``θ``, the mixed product for ``φ``.
    """

    gradient: Callable[[], tuple[Tensor, ...]]
    along: Callable[[Sequence[Tensor], Sequence[Place]], tuple[Tensor, ...]]


class Products(ABC):
    """Base class of ways to make products with second derivatives."""

    @abstractmethod
    def of(self, inner: Tensor | Callable[[], Tensor], parameters: Sequence[Tensor]) -> Derivatives:
        """Return the derivatives of ``inner`` at the parameters' present values."""


@dataclass(frozen=True)
class DoubleBackward(Products):
    """Reverse over reverse: the gradient's graph is built once, and each product is one walk through it.

    Exact, and the one evaluation means one dropout mask.  Kernels without a second derivative (cuDNN's
    recurrent nets, flash attention) need `FiniteDifference`.

    Args:
        thin: solve for the outputs of a `Layer` in place of its weights where both losses allow it and it is
            less work; the answer is the same.

    >>> weight = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> derivatives = DoubleBackward().of((weight**3).sum(), [weight])
    >>> derivatives.along([torch.ones(2)], [weight])
    (tensor([ 6., 12.]),)
    """

    thin: bool = True

    def of(self, inner: Tensor | Callable[[], Tensor], parameters: Sequence[Place]) -> Derivatives:
        slope = derivatives([evaluate(inner, "inner")], parameters, create_graph=True)

        def along(direction: Sequence[Tensor], targets: Sequence[Place]) -> tuple[Tensor, ...]:
            # A gradient without a graph is constant: unreachable parameters, or a loss linear in them.
            pairs = [(g, v) for g, v in zip(slope, direction, strict=True) if g.requires_grad]
            gradients, vectors = zip(*pairs, strict=True) if pairs else ((), ())
            return derivatives(gradients, targets, vectors)

        return Derivatives(lambda: tuple(part.detach() for part in slope), along)


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
        differences = _Differences(inner, Layout(parameters), self.epsilon, self.draws)
        return Derivatives(lambda: differences.gradients(parameters), differences.along)


class _Differences:
    def __init__(
        self, inner: Callable[[], Tensor], layout: Layout, epsilon: float | None, draws: bool
    ) -> None:
        self.inner, self.layout, self.draws = inner, layout, draws
        self.epsilon = epsilon or torch.finfo(layout.dtype).eps ** (1 / 3)
        self.devices = [one.device for one in layout.parameters[:1] if one.is_cuda]
        self.random: list[Tensor] = []  # the random states of the first evaluation

    def along(self, direction: Sequence[Tensor], targets: Sequence[Place]) -> tuple[Tensor, ...]:
        vector = self.layout.flatten(direction)
        length = torch.linalg.vector_norm(vector)
        change = self.layout.split(vector * (self.epsilon * inverse(length)))
        start = [parameter.detach().clone() for parameter in self.layout.parameters]
        try:
            self._move([value + part for value, part in zip(start, change, strict=True)])
            ahead = self.gradients(targets)
            self._move([value - part for value, part in zip(start, change, strict=True)])
            behind = self.gradients(targets)
        finally:
            self._move(start)
        scale = length / (2 * self.epsilon)
        return tuple(((a - b) * scale).to(a.dtype) for a, b in zip(ahead, behind, strict=True))

    def gradients(self, targets: Sequence[Place]) -> tuple[Tensor, ...]:
        again = self.draws and bool(self.random)
        # A solver may draw numbers between two evaluations, and must not get the same ones again.
        with torch.random.fork_rng(self.devices) if again else nullcontext():
            if again:
                cpu, *cuda = self.random
                torch.set_rng_state(cpu)
                for device, state in zip(self.devices, cuda, strict=True):
                    torch.cuda.set_rng_state(state, device)
            elif self.draws:  # the first evaluation goes on from here, as if it were the only one
                self.random = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self.devices)]
            return derivatives([evaluate(self.inner, "inner")], targets)

    def _move(self, values: Sequence[Tensor]) -> None:
        # Through ``data`` and in place: graphs made before stay valid, cuDNN's packed weights stay packed.
        for parameter, value in zip(self.layout.parameters, values, strict=True):
            parameter.data.copy_(value)
        torch.clear_autocast_cache()  # it may hold the weights of before in half precision
