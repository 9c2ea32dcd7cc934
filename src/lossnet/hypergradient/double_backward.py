"""Products with second derivatives by differentiating the gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from lossnet.hypergradient.evaluation import derivatives, evaluate, first_order
from lossnet.hypergradient.layers import Place

__all__ = ["Derivatives", "DoubleBackward", "Products"]


class Derivatives(ABC):
    """First and second derivatives of an inner loss at one point; vectors are tuples like its parameters."""

    @abstractmethod
    def gradient(self) -> tuple[Tensor, ...]:
        """``∂θ L``."""

    @abstractmethod
    def along(self, direction: Sequence[Tensor], targets: Sequence[Place]) -> tuple[Tensor, ...]:
        """``∂ω (∂θ L · v)`` for each target ``ω``: ``Hv`` for ``ω = θ``, the mixed product for ``φ``."""


class Products(ABC):
    """How products with second derivatives are made."""

    @abstractmethod
    def of(self, inner: Tensor | Callable[[], Tensor], parameters: Sequence[Tensor]) -> Derivatives:
        """The derivatives of ``inner`` at the parameters' present values."""


@dataclass(frozen=True)
class DoubleBackward(Products):
    """Reverse over reverse: the gradient's graph is built once, and each product is one walk through it.

    Exact, and the one evaluation means one dropout mask.  Kernels without a second derivative (cuDNN's
    recurrent nets, flash attention) need `FiniteDifference`.

    Args:
        thin: solve for the outputs of a `Layer` in place of its weights where both losses allow it and it is
            less work; the answer is the same.

    >>> import torch
    >>> weight = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> derivatives = DoubleBackward().of((weight**3).sum(), [weight])
    >>> derivatives.along([torch.ones(2)], [weight])
    (tensor([ 6., 12.]),)
    """

    thin: bool = True

    def of(self, inner: Tensor | Callable[[], Tensor], parameters: Sequence[Place]) -> Derivatives:
        return _Graph(evaluate(inner, "inner"), parameters)


class _Graph(Derivatives):
    def __init__(self, loss: Tensor, places: Sequence[Place]) -> None:
        self.gradients = first_order(loss, places, create_graph=True)

    def gradient(self) -> tuple[Tensor, ...]:
        return tuple(gradient.detach() for gradient in self.gradients)

    def along(self, direction: Sequence[Tensor], targets: Sequence[Place]) -> tuple[Tensor, ...]:
        # A gradient without a graph is constant: unreachable parameters, or a loss linear in them.
        pairs = [(g, v) for g, v in zip(self.gradients, direction, strict=True) if g.requires_grad]
        gradients, vectors = zip(*pairs, strict=True) if pairs else ((), ())
        return derivatives(gradients, vectors, targets)
