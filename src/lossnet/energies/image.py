"""Energies of an image and its mask: candidates ``(batch, K, height, width)`` give ``(batch, K)``.

A convolution is linear in its input channels, so the first one over image and mask together splits into
two: the image's part is computed once in ``encode``, the mask's for each candidate.  SiLU throughout keeps
the energies twice differentiable in the mask and in the parameters.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lossnet import ops
from lossnet.energies.base import Energy
from lossnet.nets.fcn import Normalise, UNet, conv
from lossnet.nets.layers import Dropout, linear

#: logits of pixels, and an image's part of the first convolution
_Encoded = tuple[Tensor | None, Tensor]


class ImageEnergy(Energy):
    """The deep value network of Gygli et al. (2017), with its sign turned: SEAL's loss-net for images (§4.4).

    The convolutions of `FCN`, over image and mask, then linear layers of 384, 192 and 1 units.  It has no
    local term.  `FeatureEnergy` has one, and shares what a task net knows of the image.

    The flattened features depend on the ``size`` of images, height and width; without it they are averaged
    over the image, and any size will do.  Dropout comes after the first linear layer (0.25 in Gygli et al.).

    >>> energy = ImageEnergy(channels=3, size=(10, 7))
    >>> energy(torch.rand(2, 3, 10, 7), torch.rand(2, 5, 10, 7)).shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        channels: int = 3,
        size: tuple[int, int] | None = None,
        filters: tuple[int, int, int] = (64, 128, 128),
        hidden: tuple[int, int] = (384, 192),
        dropout: float = 0,
    ) -> None:
        super().__init__()
        fine, middle, coarse = filters
        self.size = size
        self.normalise = Normalise(channels)
        self.fine = conv(channels + 1, fine, 5)
        self.middle = conv(fine, middle, 5, stride=2)
        self.coarse = conv(middle, coarse, 5, stride=2)
        cells = 1 if size is None else -(-size[0] // 4) * -(-size[1] // 4)
        self.first = linear(coarse * cells, hidden[0])
        self.dropout = Dropout(dropout)
        self.second = linear(hidden[0], hidden[1])
        self.weights = linear(hidden[1], 1)

    def encode(self, x: Tensor) -> Tensor:
        if self.size is not None and tuple(x.shape[-2:]) != tuple(self.size):
            raise ValueError(f"this energy is for images of size {self.size}, not {tuple(x.shape[-2:])}")
        return F.conv2d(self.normalise(x), self.fine.weight[:, :-1], self.fine.bias, padding=2)

    def evaluate(self, encoded: Tensor, y: Tensor) -> Tensor:
        fine = F.silu(ops.mask_convolution(encoded, y, self.fine.weight[:, -1:]))
        coarse = F.silu(self.coarse(F.silu(self.middle(fine))))
        flat = coarse.mean((2, 3)) if self.size is None else coarse.flatten(1)
        hidden = F.silu(self.second(self.dropout(F.silu(self.first(flat)))))
        energies: Tensor = self.weights(hidden)
        return energies.view(y.shape[:2])


class FeatureEnergy(Energy):
    """An energy over the features ``T(x)`` of a `UNet`: every pixel alone, its surroundings, the whole shape.

    ::

        E(x, y) = −Σ_i y_i bᵀT(x)_i + Σ_r Σ_i v_rᵀ h_r(x, y)_i + MLP(mean_i h_1(x, y)_i, mean_i h_2(x, y)_i)

    ``h_1`` and ``h_2`` are convolutions of features and mask, at full and at half resolution.  The first
    sum starts as the net's own logits and makes the energy of a trained net a good one from the outset;
    ``v`` starts at zero.  Sums over pixels grow with the image, as log-probabilities do and contrastive
    losses want; a regression on scores between 0 and 1 is better off with ``local=False``.

    Args:
        share: use the net itself, without gradient, so that the energy follows it while it is trained
            elsewhere; it stays out of this module's parameters and state.  Otherwise a copy is made,
            which is trained along with the energy.
        hidden: channels of ``h_1``; ``h_2`` has twice as many.
        local: whether there is a first sum.

    >>> net = UNet(width=8, depth=2)
    >>> energy = FeatureEnergy(net)
    >>> x = torch.rand(2, 3, 9, 7)
    >>> energy(x, torch.rand(2, 5, 9, 7)).shape
    torch.Size([2, 5])
    >>> torch.equal(energy.eval().unary_logits(x), net.eval()(x))
    True
    """

    def __init__(self, net: UNet, share: bool = False, hidden: int = 32, local: bool = True) -> None:
        super().__init__()
        self.local = copy.deepcopy(net.head) if local else None
        self._shared = (net,) if share else None  # in a tuple, or its parameters would become ours
        self.net = None if share else copy.deepcopy(net)
        if self.net is not None:
            self.net.head = nn.Identity()  # type: ignore[assignment]  # `local` has taken its place
        self.fine = conv(net.width + 1, hidden, 5)
        self.middle = conv(hidden, 2 * hidden, 3, stride=2)
        self.coarse = conv(2 * hidden, 2 * hidden, 3)
        self.patches = nn.Linear(3 * hidden, 1, bias=False)
        nn.init.zeros_(self.patches.weight)
        self.whole = nn.Sequential(linear(3 * hidden, 2 * hidden), nn.SiLU(), linear(2 * hidden, 1))

    def encode(self, x: Tensor) -> _Encoded:
        features = self._features(x)
        logits = None if self.local is None else self.local(features).squeeze(1)
        shift = F.conv2d(features, self.fine.weight[:, :-1], self.fine.bias, padding=2)
        return logits, shift

    def evaluate(self, encoded: _Encoded, y: Tensor) -> Tensor:
        logits, shift = encoded
        fine = F.silu(ops.mask_convolution(shift, y, self.fine.weight[:, -1:]))
        coarse = F.silu(self.coarse(F.silu(self.middle(fine))))
        sums = torch.cat([fine.sum((2, 3)), coarse.sum((2, 3))], 1)
        means = torch.cat([fine.mean((2, 3)), coarse.mean((2, 3))], 1)
        energies: Tensor = (self.patches(sums) + self.whole(means)).view(y.shape[:2])
        return energies if logits is None else energies - torch.einsum("bkhw,bhw->bk", y, logits)

    def unary_logits(self, x: Tensor) -> Tensor:
        """Return logits of ``P(y_i = 1) ∝ exp(−E)`` of the first sum alone, ``(batch, height, width)``."""
        if self.local is None:
            return super().unary_logits(x)
        logits: Tensor = self.local(self._features(x))
        return logits.squeeze(1)

    def _features(self, x: Tensor) -> Tensor:
        if self.net is not None:
            return self.net.features(x)
        assert self._shared is not None
        with torch.no_grad():
            return self._shared[0].features(x)
