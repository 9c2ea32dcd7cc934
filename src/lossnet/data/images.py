"""Images in memory and which of their pixels belong to the foreground."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lossnet.data.dataset import RESIDENT_LIMIT_BYTES, ResidentData, row_numbers
from lossnet.data.errors import DataError
from lossnet.spaces import Batch

__all__ = ["MaskData"]


@dataclass(frozen=True, eq=False)
class MaskData:
    """Images ``(n, channels, height, width)`` in [0, 1] and their masks ``(n, height, width)`` of 0 and 1.

    Images are float32, masks uint8.  Build one from images as files have them, channels last, with
    `from_arrays`.

    >>> data = MaskData(np.zeros((2, 3, 4, 5)), np.ones((2, 4, 5)))
    >>> len(data), data.channels, data.size
    (2, 3, (4, 5))
    >>> batch = data.batch(np.array([1]))
    >>> batch.x.shape, batch.y.shape
    (torch.Size([1, 3, 4, 5]), torch.Size([1, 4, 5]))
    """

    images: NDArray[np.float32]
    masks: NDArray[np.uint8]

    def __post_init__(self) -> None:
        object.__setattr__(self, "images", _images(self.images))
        object.__setattr__(self, "masks", _masks(self.masks))
        if self.images.ndim != 4 or not all(self.images.shape[1:]):
            what = f"images have the shape {self.images.shape}"
            raise DataError(f"{what}; it must be (n, channels, height, width), with pixels to see")
        if self.masks.shape != (len(self), *self.size):
            images = f"{len(self)} images of {self.size[0]}×{self.size[1]} with {self.channels} channel(s)"
            advice = "give one mask (height, width) per image, and channels last to from_arrays"
            raise DataError(f"{images} but masks of the shape {self.masks.shape}; {advice}")

    @classmethod
    def from_arrays(cls, images: Any, masks: Any) -> MaskData:
        """Data from images ``(n, height, width)`` or ``(n, height, width, channels)`` and their masks.

        Whole numbers are grey levels from 0 to 255, floats are from 0 to 1.  Masks are 0 and 1 or 0
        and 255.

        >>> data = MaskData.from_arrays(np.full((1, 2, 2), 51, np.uint8), [[[0, 255], [255, 0]]])
        >>> data.images[0, 0], data.masks[0]
        (array([[0.2, 0.2],
               [0.2, 0.2]], dtype=float32), array([[0, 1],
               [1, 0]], dtype=uint8))
        """
        levels = _numbers(images, "images")
        if levels.ndim == 3:
            levels = levels[..., None]
        if levels.ndim != 4:
            what = f"images have {levels.ndim} dimension(s)"
            raise DataError(f"{what}; give (n, height, width) or (n, height, width, channels)")
        if levels.dtype.kind in "iu":
            if levels.size and (levels.min() < 0 or levels.max() > 255):
                what = f"images have whole numbers from {levels.min()} to {levels.max()}"
                raise DataError(f"{what}; grey levels go from 0 to 255")
            levels = levels.astype(np.float32) / np.float32(255)
        return cls(_images(levels).transpose(0, 3, 1, 2), masks)

    def __len__(self) -> int:
        return len(self.images)

    @property
    def channels(self) -> int:
        """The number of colour channels."""
        return int(self.images.shape[1])

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images."""
        return self.images.shape[2], self.images.shape[3]

    def take(self, indices: Any) -> MaskData:
        """The rows ``indices``, in that order."""
        rows = row_numbers(indices, len(self))
        return MaskData(self.images[rows], self.masks[rows])

    def batch(self, indices: NDArray[np.integer[Any]] | Tensor) -> Batch:
        """The rows ``indices`` as float32 tensors ``x`` ``(b, c, h, w)`` and ``y`` ``(b, h, w)``."""
        x, y = self._tensors
        rows = torch.from_numpy(row_numbers(indices, len(self)))
        return Batch(x.index_select(0, rows), y.index_select(0, rows).to(torch.float32))

    def resident(
        self, device: torch.device | str, limit_bytes: int = RESIDENT_LIMIT_BYTES
    ) -> ResidentData | MaskData:
        """The same rows with their tensors on ``device``, where indices then also live.

        Data that would take more than ``limit_bytes`` stays where it is, and each batch is moved instead.

        >>> data = MaskData.from_arrays(np.zeros((2, 3, 3)), np.ones((2, 3, 3)))
        >>> data.resident("cpu").batch(torch.tensor([1])).y.sum()
        tensor(9.)
        """
        if 4 * (self.images.size + self.masks.size) > limit_bytes:
            return self
        x, y = self._tensors
        return ResidentData(x.to(device), y.to(device, torch.float32))

    @cached_property
    def _tensors(self) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.images), torch.from_numpy(self.masks)


def _images(images: Any) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # what does not fit float32 becomes infinite: reported below
        pixels = np.ascontiguousarray(_numbers(images, "images"), dtype=np.float32)
    if not np.isfinite(pixels).all():
        raise DataError("images have a value that is not finite; pixels must be from 0 to 1")
    if pixels.size and (pixels.min() < 0 or pixels.max() > 1):
        what = f"images have values from {pixels.min():g} to {pixels.max():g}"
        raise DataError(f"{what}; pixels must be from 0 to 1, or whole grey levels from 0 to 255")
    return pixels if pixels.flags.writeable else pixels.copy()  # torch shares writable arrays only


def _masks(masks: Any) -> NDArray[np.uint8]:
    masks = _numbers(masks, "masks")
    if masks.ndim != 3:
        raise DataError(f"masks have {masks.ndim} dimension(s); they need three: (n, height, width)")
    foreground = masks != 0
    values = masks[foreground]
    if not ((values == 1).all() or (values == 255).all()):
        strange = values[(values != 1) & (values != 255)]
        what = f"a mask has the value {strange[0]}" if strange.size else "masks have both 1 and 255"
        raise DataError(f"{what}; masks must be 0 and 1, or 0 and 255")
    return np.ascontiguousarray(foreground, dtype=np.uint8)


def _numbers(values: Any, name: str) -> NDArray[Any]:
    try:
        numbers: NDArray[Any] = np.asarray(values)
        return numbers if numbers.dtype.kind in "biuf" else numbers.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} are not arrays of numbers ({error})") from error
