"""Multi-layer perceptrons for inputs given as feature vectors."""

from __future__ import annotations

from torch import Tensor, nn

from lossnet.nets.layers import Dropout, InputLayer, linear

__all__ = ["MLP"]


class MLP(nn.Sequential):
    """``layers`` hidden layers of width ``hidden`` (softplus, dropout), then ``outputs`` if given.

    Without ``outputs`` it is a feature network ``T(x)`` (SEAL §4); with it, a task net ``A(x)``.
    Inputs ``(batch, inputs)``, dense or in CSR layout, give ``(batch, hidden)`` or ``(batch, outputs)``.

    >>> import torch
    >>> MLP(4, hidden=8, layers=2, outputs=3)(torch.zeros(5, 4)).shape
    torch.Size([5, 3])
    """

    def __init__(
        self, inputs: int, hidden: int, layers: int, outputs: int | None = None, dropout: float = 0
    ) -> None:
        modules: list[nn.Module] = []
        width = inputs
        for _ in range(layers):
            modules += [(linear if modules else InputLayer)(width, hidden), nn.Softplus()]
            if dropout:
                modules.append(Dropout(dropout))
            width = hidden
        if outputs is not None:
            modules.append((linear if modules else InputLayer)(width, outputs))
        super().__init__(*modules)
        self.width = width

    def features(self, x: Tensor) -> Tensor:
        """Return what the outputs are read from, ``(batch, self.width)``."""
        for module in list(self)[:-1]:
            x = module(x)
        return x

    @property
    def head(self) -> nn.Module:
        """The last layer, from features to outputs."""
        return self[-1]
