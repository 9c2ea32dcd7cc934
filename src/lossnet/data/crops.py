"""Crops of images: training sees random ones, prediction averages over evenly spaced ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lossnet.data.distortion import Distortion
from lossnet.data.errors import DataError
from lossnet.spaces import Batch

if TYPE_CHECKING:
    from lossnet.data.examples import Dataset
    from lossnet.methods.base import Predict

#: Crops that go through a network at once; a single position of a larger batch still does.
_AT_ONCE = 1024


@dataclass(frozen=True)
class Crops:
    """Views of a smaller size on images.

    Gygli et al. (2017) train on random 24×24 crops of 32×32 images and average over 36 at test time.

    Args:
        size: height and width of a crop, one number where they are equal.
        per_side: crops along each side at prediction, so that there are ``per_side²`` (fewer where an image
            has fewer positions, more where an image needs more to be covered).
        flips: whether images are also seen mirrored, left to right.
        distortion: what happens to images in training before they are cropped.

    >>> crops = Crops(24)
    >>> len(crops.positions(32, 32)), crops.positions(32, 32)[:6]
    (36, ((0, 0), (0, 2), (0, 3), (0, 5), (0, 6), (0, 8)))
    """

    size: int | tuple[int, int]
    per_side: int = 6
    flips: bool = False
    distortion: Distortion | None = None

    def __post_init__(self) -> None:
        if min(*self.shape, self.per_side) < 1:
            raise ValueError(f"size and per_side must be at least 1, not {self.size} and {self.per_side}")

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of a crop."""
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    def training(self, dataset: Dataset) -> Dataset:
        """Return the same instances, each seen through another random crop whenever it is asked for.

        Crops come from torch's random numbers of the device where the data are.

        >>> from lossnet.data import MaskData
        >>> data = MaskData(torch.rand(5, 3, 32, 32), torch.ones(5, 32, 32))
        >>> Crops(24).training(data).batch(torch.tensor([0, 0, 4])).x.shape
        torch.Size([3, 3, 24, 24])
        """
        return _RandomCrops(dataset, self)

    def averaged(self, predict: Predict) -> Predict:
        """Return a predictor for whole images from one for crops: each pixel's mean over its crops.

        >>> whole = Crops(2).averaged(lambda x, mask: x[:, 0])
        >>> whole(torch.arange(9.0).reshape(1, 1, 3, 3), None)
        tensor([[[0., 1., 2.],
                 [3., 4., 5.],
                 [6., 7., 8.]]])
        """

        def whole(x: Tensor, mask: Tensor | None = None) -> Tensor:
            mean = self._mean(predict, x, mask)
            if not self.flips:
                return mean
            mirrored = self._mean(predict, x.flip(-1), None if mask is None else mask.flip(-1))
            return (mean + mirrored.flip(-1)) / 2

        return whole

    def quick(self, predict: Predict) -> Predict:
        """Return `averaged` with the fewest crops that cover an image, for validation between epochs."""
        return replace(self, per_side=1, flips=False).averaged(predict)

    def positions(self, height: int, width: int) -> tuple[tuple[int, int], ...]:
        """Return the upper left corners ``(top, left)`` of the crops that prediction averages over.

        >>> Crops(3, per_side=2).positions(3, 4)
        ((0, 0), (0, 1))
        """
        self._check(height, width)
        rows, columns = self.shape
        return tuple(product(self._offsets(height, rows), self._offsets(width, columns)))

    def _offsets(self, length: int, size: int) -> list[int]:
        count = max(self.per_side, -(-length // size))
        last = length - size
        # Neighbours are at most `size` apart, so no pixel is left out.
        return sorted({round(i * last / max(count - 1, 1)) for i in range(count)})

    def _mean(self, predict: Predict, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the mean over the crops of ``x`` ``(b, c, h, w)``, as ``(b, h, w)``."""
        height, width = x.shape[-2:]
        positions = self.positions(height, width)
        total = x.new_zeros(len(x), height, width)
        seen = x.new_zeros(height, width)
        together = max(1, _AT_ONCE // max(1, len(x)))
        for start in range(0, len(positions), together):
            part = positions[start : start + together]
            inputs = torch.cat([self._view(x, position) for position in part])
            masks = None if mask is None else torch.cat([self._view(mask, position) for position in part])
            outputs = predict(inputs, masks).reshape(len(part), len(x), *self.shape)
            for position, output in zip(part, outputs, strict=True):
                self._view(total, position).add_(output)
                self._view(seen, position).add_(1)
        return total / seen

    def _view(self, images: Tensor, position: tuple[int, int]) -> Tensor:
        (top, left), (height, width) = position, self.shape
        return images[..., top : top + height, left : left + width]

    def _check(self, height: int, width: int) -> None:
        if self.shape[0] > height or self.shape[1] > width:
            what = f"crops of {self.shape[0]}×{self.shape[1]} do not fit into images of {height}×{width}"
            raise DataError(f"{what}; choose a smaller crop size")


@dataclass(frozen=True, eq=False)
class _RandomCrops:
    """Data seen through random crops."""

    dataset: Dataset
    crops: Crops

    def __len__(self) -> int:
        return len(self.dataset)

    def batch(self, indices: Tensor) -> Batch:
        """Return random crops of these instances: ``x`` ``(b, c, *shape)`` and ``y`` ``(b, *shape)``."""
        whole, distortion = self.dataset.batch(indices), self.crops.distortion
        if distortion is not None:
            whole = distortion(whole)
            if distortion.patches:
                others = torch.randint(len(self.dataset), (len(whole.x),), device=whole.x.device)
                whole = distortion.paste(whole, distortion(self.dataset.batch(others)))
        height, width = whole.x.shape[-2:]
        self.crops._check(height, width)
        pixels = self._pixels(len(whole.x), height, width, whole.x.device)
        mask = None if whole.mask is None else self._gather(whole.mask, pixels)
        return Batch(self._gather(whole.x, pixels), self._gather(whole.y, pixels), mask, whole.weight)

    def _pixels(self, count: int, height: int, width: int, device: torch.device) -> Tensor:
        """Return the places of each crop's pixels in its flattened image, ``(count, pixels)``."""
        inner_height, inner_width = self.crops.shape
        top = torch.randint(height - inner_height + 1, (count, 1), device=device)
        left = torch.randint(width - inner_width + 1, (count, 1), device=device)
        rows = top + torch.arange(inner_height, device=device)
        columns = left + torch.arange(inner_width, device=device)
        if self.crops.flips:
            mirrored = torch.rand(count, 1, device=device) < 0.5
            columns = torch.where(mirrored, columns.flip(1), columns)
        return (rows.unsqueeze(2) * width + columns.unsqueeze(1)).flatten(1)

    def _gather(self, images: Tensor, pixels: Tensor) -> Tensor:
        if images.dim() == 4:
            pixels = pixels.unsqueeze(1).expand(-1, images.shape[1], -1)
        chosen = images.flatten(-2).gather(-1, pixels)
        return chosen.view(*chosen.shape[:-1], *self.crops.shape)
