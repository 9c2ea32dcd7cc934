"""Multi-layer perceptrons for inputs given as feature vectors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from lossnet import kernels
from lossnet.coins import Dropout
from lossnet.nets.layers import InputLayer, hooked, linear

__all__ = ["MLP"]


class MLP(nn.Sequential):
    """``layers`` hidden layers of width ``hidden`` (softplus, dropout), then ``outputs`` if given.

    Without ``outputs`` it is a feature network ``T(x)`` (SEAL §4); with it, a task net ``A(x)``.
    Inputs ``(batch, inputs)``, dense or sparse CSR, give ``(batch, hidden)`` or ``(batch, outputs)``.

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

    def forward(self, input: Tensor) -> Tensor:
        return _through(self, input)

    def features(self, x: Tensor) -> Tensor:
        """What the outputs are read from, ``(batch, self.width)``."""
        return _through(list(self)[:-1], x)

    @property
    def head(self) -> nn.Module:
        """The last layer, from features to outputs."""
        return self[-1]


def _through(modules: Iterable[Any], x: Tensor) -> Tensor:
    """What modules make of inputs, one after the other; on a GPU softplus and dropout with their layer."""
    left = list(modules)
    while left:
        layer = left.pop(0)
        hidden = None
        drops = [module for module in left[1:2] if isinstance(module, Dropout)]
        if hasattr(layer, "upright") and left and _is_plain(left[0]) and not hooked(layer, left[0], *drops):
            rate = drops[0].p if drops and drops[0].training else 0.0
            hidden = kernels.layer(x, layer.weight, layer.bias, layer.upright, active=True, dropout=rate)
            if hidden is not None:
                del left[: 1 + len(drops)]
        x = layer(x) if hidden is None else hidden
    return x


def _is_plain(module: nn.Module) -> bool:
    """Whether a module is softplus as it is by default."""
    return type(module) is nn.Softplus and (module.beta, module.threshold) == (1, 20)
