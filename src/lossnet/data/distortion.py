"""Random changes of shape and colour, so that training sees every image differently each time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lossnet.spaces import Batch


@dataclass(frozen=True)
class Distortion:
    """Random turns, stretches and tints of images and their masks, and patches of other images.

    Each image is stretched about its centre by a factor ``exp(u)`` along either side and turned by ``u``
    radians, every ``u`` uniform in ``[−warp, warp]``; beyond its border is the image's reflection.
    Its brightness is then multiplied by ``exp(v)``, each channel's by another ``exp(v/2)``, and its contrast
    by ``exp(v)``, every ``v`` uniform in ``[−colour, colour]``.  With a chance of ``patches`` it then has a
    rectangle of another image (CutMix, Yun et al. 2019), of 0.2 to 0.6 times either side; `paste` does
    this last, as it needs the others.  Random numbers are torch's, of the images' device.

    >>> batch = Batch(torch.rand(4, 3, 32, 32), torch.ones(4, 32, 32))
    >>> seen = Distortion(warp=0.2, colour=0.2)(batch)
    >>> seen.x.shape, bool((seen.y == 1).all())
    (torch.Size([4, 3, 32, 32]), True)
    """

    warp: float = 0.0
    colour: float = 0.0
    patches: float = 0.0

    def __post_init__(self) -> None:
        if not (self.warp >= 0 and self.colour >= 0):
            raise ValueError(f"warp and colour must not be negative, not {self.warp} and {self.colour}")
        if not 0 <= self.patches <= 1:
            raise ValueError(f"patches must be from 0 to 1, not {self.patches}")

    def __call__(self, batch: Batch) -> Batch:
        """Distort images ``(b, c, h, w)`` in [0, 1] and masks ``(b, h, w)`` of 0 and 1."""
        x, y = batch.x, batch.y
        if self.warp:
            grid = self._grid(x)
            x, y = _read(x, grid), (_read(y.unsqueeze(1), grid).squeeze(1) >= 0.5).to(y.dtype)
        return Batch(self._tint(x) if self.colour else x, y, weight=batch.weight)

    def paste(self, batch: Batch, others: Batch) -> Batch:
        """Return the images with rectangles of as many others in some of them, each where it was.

        >>> black, white = (Batch(torch.full((4, 3, 9, 9), v), torch.full((4, 9, 9), v)) for v in (0.0, 1.0))
        >>> seen = Distortion(patches=1.0).paste(black, white)
        >>> bool((seen.y > 0).flatten(1).any(1).all()), bool((seen.x[:, 0] == seen.y).all())
        (True, True)
        """
        rows, columns = (self._stretch(batch.x, axis) for axis in (-2, -1))
        chosen = torch.rand(len(batch.x), 1, 1, device=batch.x.device) < self.patches
        there = chosen & rows.unsqueeze(2) & columns.unsqueeze(1)
        x, y = torch.where(there.unsqueeze(1), others.x, batch.x), torch.where(there, others.y, batch.y)
        return Batch(x, y, weight=batch.weight)

    @staticmethod
    def _stretch(x: Tensor, axis: int) -> Tensor:
        """Return which places along a side of each image the rectangle covers, ``(b, side)``."""
        side = x.shape[axis]
        length, start = torch.rand(len(x), 2, 1, device=x.device).unbind(1)
        length = (side * (0.2 + 0.4 * length)).round().clamp(min=1)
        first = (start * (side - length + 1)).floor()
        places = torch.arange(side, device=x.device)
        return (places >= first) & (places < first + length)

    def _grid(self, x: Tensor) -> Tensor:
        """Return where each pixel is read, ``(b, h, w, 2)``, in `grid_sample`'s coordinates."""
        count, _, height, width = x.shape
        across, down, angle = _uniform(self.warp, (3, count), x)
        cosine, sine = angle.cos(), angle.sin()
        # grid_sample has both sides go from −1 to 1, so that a turn of an oblong image needs their ratio.
        ratio = height / width
        zero = torch.zeros_like(angle)
        first = (cosine * across.exp(), -sine * ratio * across.exp(), zero)
        second = (sine / ratio * down.exp(), cosine * down.exp(), zero)
        matrix = torch.stack([*first, *second], 1).view(count, 2, 3)
        return F.affine_grid(matrix, [count, 1, height, width], align_corners=False)

    def _tint(self, x: Tensor) -> Tensor:
        count, channels = x.shape[:2]
        bright, contrast = _uniform(self.colour, (2, count, 1, 1, 1), x).exp()
        tint = _uniform(self.colour / 2, (count, channels, 1, 1), x).exp()
        x = x * bright * tint
        mean = x.mean((1, 2, 3), keepdim=True)
        tinted: Tensor = ((x - mean) * contrast + mean).clamp(0, 1)
        return tinted


def _uniform(limit: float, shape: tuple[int, ...], like: Tensor) -> Tensor:
    return (2 * torch.rand(shape, device=like.device, dtype=like.dtype) - 1) * limit


def _read(images: Tensor, grid: Tensor) -> Tensor:
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
