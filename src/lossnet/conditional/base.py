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

    @abstractmethod
    def marginals(self, x: Tree, relaxed: Tensor, known: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the probabilities of units given what is known, ``(batch, *event)``."""
