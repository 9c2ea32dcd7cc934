"""Base class of engines."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor, nn

from lossnet.trees import Tree


class Conditional(nn.Module):
    """``P(y | x, known)``, beside a task net whose probabilities ``(batch, *event)`` are ``relaxed``.

    What is ``known`` ``(batch, *event)`` is 1, 0 or NaN.
    """

    #: what users call it
    engine: ClassVar[str]
    #: whether whole outputs are drawn, judged and searched
    joint: ClassVar[bool] = False

    @abstractmethod
    def marginals(self, x: Tree, relaxed: Tensor, known: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the probabilities of units given what is known, ``(batch, *event)``."""

    def sample(self, x: Tree, relaxed: Tensor, known: Tensor, count: int, seed: int) -> Tensor:
        """Return whole outputs ``(batch, count, *event)``."""
        raise NotImplementedError

    def log_prob(
        self, x: Tree, relaxed: Tensor, known: Tensor, y: Tensor, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return estimates of ``log P`` of outputs ``(batch, K, *event)``, and their standard errors."""
        raise NotImplementedError

    def likeliest(self, x: Tree, relaxed: Tensor, known: Tensor) -> Tensor:
        """Return the likeliest whole output ``(batch, *event)``."""
        raise NotImplementedError

    def doubts(self, x: Tree, relaxed: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``log P(y′) − log P(y)`` ``(batch,)`` of outputs ``y``, and the likelier outputs ``y′``."""
        raise NotImplementedError
