"""Images and masks in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lossnet.data.errors import DataError
from lossnet.data.examples import Column, Examples, Resident, Rows, Source, Target, row_numbers

#: masks of whole numbers up to this number classes; of larger ones they are grey levels
_MOST_CLASSES = 64


class _Stack(Column):
    """An array ``(n, …)`` with one row per instance, as float32 in batches."""

    def __init__(self, values: Any) -> None:
        self.values: NDArray[Any] = values

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: NDArray[np.int64]) -> Self:
        return type(self)(self.values[rows])

    def join(self, others: Sequence[Self]) -> Self:
        return type(self)(np.concatenate([self.values, *(other.values for other in others)]))

    def batch(self, indices: Rows) -> Tensor:
        """Return some rows as a float32 tensor ``(b, …)``."""
        rows = torch.from_numpy(row_numbers(indices, len(self)))
        return torch.from_numpy(self.values).index_select(0, rows).to(torch.float32)

    def pieces(self) -> Iterator[NDArray[Any] | str]:
        yield self.values

    def on(self, device: torch.device | str) -> Column:
        on_cpu = torch.device(device).type == "cpu"
        return self if on_cpu else Resident(torch.from_numpy(self.values).to(device, torch.float32))

    @property
    def dense_bytes(self) -> int:
        return 4 * self.values.size


class Pictures(_Stack, Source):
    """Images ``(n, channels, height, width)`` in [0, 1], of one size, as float32.

    >>> pictures = Pictures(np.zeros((2, 3, 4, 5)))
    >>> len(pictures), pictures.channels, pictures.size
    (2, 3, (4, 5))
    """

    def __init__(self, images: Any) -> None:
        self.images = _images(images)
        super().__init__(self.images)
        if self.images.ndim != 4 or not all(self.images.shape[1:]):
            what = f"images have the shape {self.images.shape}"
            raise DataError(f"{what}; it must be (n, channels, height, width), with pixels to see")

    @classmethod
    def from_arrays(cls, images: Any) -> Pictures:
        """Return images given as files have them: ``(n, height, width)`` or ``(n, height, width, channels)``.

        Whole numbers are grey levels from 0 to 255, floats are from 0 to 1.

        >>> Pictures.from_arrays(np.full((1, 1, 2), 51, np.uint8)).images
        array([[[[0.2, 0.2]]]], dtype=float32)
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
        return cls(_images(levels).transpose(0, 3, 1, 2))

    @property
    def channels(self) -> int:
        """The number of colour channels."""
        return int(self.images.shape[1])

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images."""
        return self.images.shape[2], self.images.shape[3]


class MaskStack(_Stack, Target):
    """Masks ``(n, height, width)`` of 0 and 1, as uint8; 0 and 255 are taken too.

    >>> MaskStack([[[0, 255], [255, 0]]]).batch(np.array([0]))
    tensor([[[0., 1.],
             [1., 0.]]])
    """

    def __init__(self, masks: Any) -> None:
        masks = _numbers(masks, "masks")
        if masks.ndim != 3:
            what = f"masks have {masks.ndim} dimension(s); they need three: (n, height, width)"
            hint = "; of masks in colour or with an axis for channels give one: masks[..., 0]"
            raise DataError(what + hint * (masks.ndim == 4))
        foreground = masks != 0
        values = masks[foreground]
        if not ((values == 1).all() or (values == 255).all()):
            raise DataError(_strange_masks(np.unique(masks)))
        self.masks = np.ascontiguousarray(foreground, dtype=np.uint8)
        super().__init__(self.masks)


class MaskData(Examples):
    """Images and which of their pixels are foreground: `Examples` of `Pictures` and a `MaskStack`.

    Build one from images as files have them, channels last, with `from_arrays`.

    >>> data = MaskData(np.zeros((2, 3, 4, 5)), np.ones((2, 4, 5)))
    >>> batch = data.batch(np.array([1]))
    >>> batch.x.shape, batch.y.shape
    (torch.Size([1, 3, 4, 5]), torch.Size([1, 4, 5]))
    """

    source: Pictures
    target: MaskStack

    def __init__(self, images: Any, masks: Any) -> None:
        source = images if isinstance(images, Pictures) else Pictures(images)
        target = masks if isinstance(masks, MaskStack) else MaskStack(masks)
        if target.masks.shape != (len(source), *source.size):
            height, width = source.size
            what = f"{len(source)} images of {height}×{width} with {source.channels} channel(s)"
            advice = "give one mask (height, width) per image, and channels last to from_arrays"
            raise DataError(f"{what} but masks of the shape {target.masks.shape}; {advice}")
        super().__init__(source, target)

    @classmethod
    def from_arrays(cls, images: Any, masks: Any) -> MaskData:
        """Return data from images as `Pictures.from_arrays` takes them and masks ``(n, height, width)``.

        >>> data = MaskData.from_arrays(np.full((1, 2, 2), 51, np.uint8), [[[0, 255], [255, 0]]])
        >>> data.images[0, 0], data.masks[0]
        (array([[0.2, 0.2],
               [0.2, 0.2]], dtype=float32), array([[0, 1],
               [1, 0]], dtype=uint8))
        """
        return cls(Pictures.from_arrays(images), MaskStack(masks))

    images = property(attrgetter("source.images"), doc="The images ``(n, channels, height, width)``.")
    masks = property(attrgetter("target.masks"), doc="The masks ``(n, height, width)``.")
    channels = property(attrgetter("source.channels"), doc="The number of colour channels.")
    size = property(attrgetter("source.size"), doc="Height and width of the images.")


def _strange_masks(values: NDArray[Any]) -> str:
    """Return an error message about masks with these values."""
    if not set(values.tolist()) - {0, 1, 255}:
        return "masks have both 1 and 255; masks must be 0 and 1, or 0 and 255"
    shown = ", ".join(f"{value:g}" for value in values[:5]) + (", …" if len(values) > 5 else "")
    some = f"the value {shown}" if len(values) == 1 else f"{len(values)} values ({shown})"
    what = f"masks have {some}; they must be 0 and 1, or 0 and 255"
    if (values != np.round(values)).any():
        return f"{what}; of shares of foreground make 0 and 1: masks > 0.5"
    if values[-1] <= _MOST_CLASSES:
        return f"{what}; where they number classes, train on one of them at a time: masks == {values[-1]:g}"
    return f"{what}; of grey levels, as at soft edges, make 0 and 1: masks > {values[-1] // 2:g}"


def _images(images: Any) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # what does not fit float32 becomes infinite: reported below
        pixels = np.ascontiguousarray(_numbers(images, "images"), dtype=np.float32)
    if not np.isfinite(pixels).all():
        raise DataError("images have a value that is not finite; pixels must be from 0 to 1")
    if pixels.size and (pixels.min() < 0 or pixels.max() > 1):
        what = f"images have values from {pixels.min():g} to {pixels.max():g}"
        raise DataError(f"{what}; pixels must be from 0 to 1, or whole grey levels from 0 to 255")
    return pixels if pixels.flags.writeable else pixels.copy()  # torch shares writable arrays only


def _numbers(values: Any, name: str) -> NDArray[Any]:
    try:
        numbers: NDArray[Any] = np.asarray(values)
        return numbers if numbers.dtype.kind in "biuf" else numbers.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} are not arrays of numbers ({error})") from error
