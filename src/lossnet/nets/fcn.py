"""Networks that read images: logits for every pixel, or for the whole image.

All activations here are smooth: implicit gradients and energies differentiate a network twice, and the
second derivative of a rectified linear unit is zero wherever it exists.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lossnet.nets.layers import Headed


class FCN(nn.Module):
    """The fully convolutional task net of Gygli et al. (2017) and SEAL §4.4: images to logits of pixels.

    Three 5×5 convolutions, of stride 1, 2 and 2, and two 5×5 transposed convolutions back to full
    resolution; the features met on the way down are added on the way up (Long et al. 2015).  SiLU takes the
    place of ReLU and learns as fast; softplus learns more slowly.  Images ``(batch, channels, height,
    width)`` in [0, 1], of any size, give logits ``(batch, height, width)``.

    >>> FCN()(torch.rand(2, 3, 24, 21)).shape
    torch.Size([2, 24, 21])
    """

    def __init__(self, channels: int = 3, filters: tuple[int, int, int] = (64, 128, 128)) -> None:
        super().__init__()
        fine, middle, coarse = filters
        self.width = fine
        self.normalise = Normalise(channels)
        self.fine = conv(channels, fine, 5)
        self.middle = conv(fine, middle, 5, stride=2)
        self.coarse = conv(middle, coarse, 5, stride=2)
        self.to_middle = _Up(coarse, middle)
        self.to_fine = _Up(middle, fine)
        self.head = nn.Conv2d(fine, 1, 1)

    def features(self, x: Tensor) -> Tensor:
        """Return what the logits are read from, ``(batch, fine filters, height, width)``."""
        fine = F.silu(self.fine(self.normalise(x)))
        middle = F.silu(self.middle(fine))
        coarse = F.silu(self.coarse(middle))
        middle = F.silu(self.to_middle(coarse, middle))
        return F.silu(self.to_fine(middle, fine))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits.squeeze(1)


class UNet(nn.Module):
    """A small U-Net (Ronneberger et al. 2015) with group normalisation, SiLU and bilinear up-sampling.

    Level ``l`` of ``0 … depth`` has ``width · 2ˡ`` channels at a ``2ˡ``-th of the resolution; each is two
    3×3 convolutions with channel dropout between them.  Images ``(batch, channels, height, width)`` in
    [0, 1], of any size, give logits ``(batch, height, width)``.  Small images may be made ``enlarge`` times
    as large first; what is seen of each pixel is then averaged.

    >>> net = UNet(width=8, depth=2, enlarge=2)
    >>> net(torch.rand(2, 3, 13, 10)).shape
    torch.Size([2, 13, 10])
    >>> net.features(torch.rand(2, 3, 13, 10)).shape
    torch.Size([2, 8, 13, 10])
    """

    def __init__(
        self, channels: int = 3, width: int = 32, depth: int = 3, dropout: float = 0.1, enlarge: int = 1
    ) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.width = width
        self.enlarge = enlarge
        self.normalise = Normalise(channels)
        self.down = nn.ModuleList([_block(channels, width, dropout)])
        self.up = nn.ModuleList()
        for narrow, wide in pairwise(widths):
            self.down.append(_block(narrow, wide, dropout, stride=2))
            self.up.insert(0, _block(narrow + wide, narrow, dropout))
        self.head = nn.Conv2d(width, 1, 1)

    def features(self, x: Tensor) -> Tensor:
        """Return what the logits are read from, ``(batch, self.width, height, width)``."""
        x = self.normalise(x)
        if self.enlarge > 1:
            x = F.interpolate(x, scale_factor=self.enlarge, mode="bilinear", align_corners=False)
        seen = []
        for down in self.down:
            x = down(x)
            seen.append(x)
        for up, skip in zip(self.up, reversed(seen[:-1]), strict=True):
            x = F.interpolate(x, size=skip.shape[-2:], mode="bilinear", align_corners=False)
            x = up(torch.cat([x, skip], 1))
        return F.avg_pool2d(x, self.enlarge) if self.enlarge > 1 else x

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits.squeeze(1)


class PooledImages(Headed):
    """The mean of a network's features over the pixels of each image.

    >>> PooledImages(FCN(3, (4, 8, 8)), outputs=3)(torch.rand(2, 3, 9, 7)).shape
    torch.Size([2, 3])
    """

    def __init__(self, encoder: FCN | UNet, outputs: int | None = None) -> None:
        encoder.head = nn.Identity()  # type: ignore[assignment]  # logits of pixels are not asked for
        super().__init__(encoder, outputs)

    def features(self, x: Tensor) -> Tensor:
        pixels: Tensor = self.encoder.features(x)  # type: ignore[operator]
        return pixels.mean((2, 3))


class MarkedImages(nn.Module):
    """A network of images whose last channels are marks, ``(batch, marks, height, width)``.

    >>> MarkedImages(FCN(3 + 2, (4, 8, 8)))(torch.rand(2, 3, 9, 7), torch.zeros(2, 2, 9, 7)).shape
    torch.Size([2, 9, 7])
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, marks: Tensor) -> Tensor:
        logits: Tensor = self.net(torch.cat([x, marks], 1))
        return logits


class Normalise(nn.Module):
    """``(x − mean) / std`` for each channel of images ``(batch, channels, height, width)``.

    Both are buffers, stored with the weights; the defaults suit images in [0, 1] of which nothing is known.

    >>> normalise = Normalise(3)
    >>> images = torch.rand(4, 3, 8, 8)
    >>> normalise.fit(images)(images).mean((0, 2, 3)).abs() < 1e-5
    tensor([True, True, True])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, channels: int, mean: float = 0.5, std: float = 0.25) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((channels, 1, 1), mean))
        self.register_buffer("std", torch.full((channels, 1, 1), std))

    @torch.no_grad()
    def fit(self, images: Tensor) -> Normalise:
        """Take mean and deviation from training images ``(images, channels, height, width)``."""
        std, mean = torch.std_mean(images, dim=(0, 2, 3), correction=0)
        self.mean.copy_(mean.view_as(self.mean))
        self.std.copy_(std.view_as(self.std).clamp(min=1e-3))  # a channel may be constant
        return self

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution that keeps the size (or its ``stride``-th part, rounded up), started as `linear`.

    >>> conv(3, 4, size=5, stride=2)(torch.zeros(1, 3, 7, 8)).shape
    torch.Size([1, 4, 4, 4])
    """
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2)
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


class _Up(nn.Module):
    """The transpose of a 5×5 convolution of stride 2: back to exactly the size that it was applied to."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(inputs, outputs, 5, stride=2, padding=2)
        # A quarter of the weights meets each pixel; `kaiming_uniform_` would count all of it, and outputs.
        bound = math.sqrt(6 / (inputs * 25 / 4))
        nn.init.uniform_(self.conv.weight, -bound, bound)
        assert self.conv.bias is not None
        nn.init.zeros_(self.conv.bias)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        up: Tensor = self.conv(x, output_size=list(skip.shape[-2:]))
        return up + skip


class _GroupNorm(nn.GroupNorm):
    """`torch.nn.GroupNorm`, which refuses a group of one value, but not in a batch of several images."""

    def forward(self, input: Tensor) -> Tensor:
        return torch.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


def _block(inputs: int, outputs: int, dropout: float, stride: int = 1) -> nn.Sequential:
    groups = math.gcd(8, outputs)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
        _GroupNorm(groups, outputs),
        nn.SiLU(),
        nn.Dropout2d(dropout),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        _GroupNorm(groups, outputs),
        nn.SiLU(),
    )
