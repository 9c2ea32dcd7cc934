"""Random changes of shape and colour, so that training sees every image differently each time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lossnet.spaces import Batch

__all__ = ["Distortion"]


@dataclass(frozen=True)
class Distortion:
    """Turns, stretches and tints images; masks go along.

    Each image is stretched about its centre by a factor ``exp(u)`` along either side and turned by ``u``
    radians, every ``u`` uniform in ``[−warp, warp]``; what comes in from outside is the image's reflection.
    Its brightness is then multiplied by ``exp(v)``, each channel's by another ``exp(v/2)``, and its contrast
    by ``exp(v)``, every ``v`` uniform in ``[−colour, colour]``.  Random numbers are torch's, of the images'
    device.

    >>> batch = Batch(torch.rand(4, 3, 32, 32), torch.ones(4, 32, 32))
    >>> seen = Distortion(warp=0.2, colour=0.2)(batch)
    >>> seen.x.shape, bool((seen.y == 1).all())
    (torch.Size([4, 3, 32, 32]), True)
    """

    warp: float = 0.0
    colour: float = 0.0

    def __post_init__(self) -> None:
        if not (self.warp >= 0 and self.colour >= 0):
            raise ValueError(f"warp and colour must not be negative, not {self.warp} and {self.colour}")

    def __call__(self, batch: Batch) -> Batch:
        """Images ``(b, c, h, w)`` in [0, 1] and masks ``(b, h, w)`` of 0 and 1, distorted."""
        x, y = batch.x, batch.y
        if self.warp:
            grid = self._grid(x)
            x, y = _read(x, grid), (_read(y.unsqueeze(1), grid).squeeze(1) >= 0.5).to(y.dtype)
        return Batch(self._tint(x) if self.colour else x, y, weight=batch.weight)

    def _grid(self, x: Tensor) -> Tensor:
        """Where each pixel is read, ``(b, h, w, 2)``, in `grid_sample`'s coordinates."""
        count, _, height, width = x.shape
        across, down, angle = _uniform(self.warp, (3, count), x)
        cosine, sine = angle.cos(), angle.sin()
        # grid_sample has both sides go from −1 to 1, so that a turn of an oblong image needs their ratio.
        ratio = height / width
        rows = [
            torch.stack([cosine * across.exp(), -sine * ratio * across.exp()], 1),
            torch.stack([sine / ratio * down.exp(), cosine * down.exp()], 1),
        ]
        matrix = torch.stack(rows, 1)
        matrix = torch.cat([matrix, matrix.new_zeros(count, 2, 1)], 2)
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
