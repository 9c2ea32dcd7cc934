"""Foreground pixels of images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lossnet.data import Crops, DataError, Distortion, Loaded, MaskData
from lossnet.data.stored import stored_number
from lossnet.energies import Energy, FeatureEnergy, ImageEnergy
from lossnet.nets import FCN, UNet
from lossnet.nets.fcn import Normalise
from lossnet.scores import IoU
from lossnet.settings import Settings
from lossnet.spaces import Blocks, Field, Mask, Smooth
from lossnet.tasks.base import Arrays, Task
from lossnet.training import Dataset

__all__ = ["MaskTask"]

Net = TypeVar("Net", bound=nn.Module)
#: channels and pixels along a side of images that a stored model may have seen
_LARGEST = 1 << 16


@dataclass(frozen=True)
class MaskTask(Task):
    """Channels and size of images ``(height, width)``, and the mean and deviation of training pixels.

    >>> task = MaskTask(channels=3, size=(32, 32))
    >>> task.task_net(Settings())(torch.rand(2, 3, 24, 24)).shape
    torch.Size([2, 24, 24])
    """

    kind = "masks"
    score = IoU()

    channels: int
    size: tuple[int, int]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @classmethod
    def of(cls, data: Loaded) -> MaskTask:
        """The task that a loaded data set poses."""
        train = data.train
        assert isinstance(train, MaskData)
        fitted = Normalise(train.channels).fit(torch.from_numpy(train.images))
        mean, std = (tuple(part.flatten().tolist()) for part in (fitted.mean, fitted.std))
        return cls(train.channels, train.size, mean, std)

    def space(self, settings: Settings) -> Mask:
        fields: dict[str, Field | None] = {
            "pixels": None,
            "blocks": Blocks(max(1, round(settings.noise_scale))),
            "smooth": Smooth(settings.noise_scale),
        }
        return Mask(fields[settings.noise])

    @property
    def units(self) -> int:
        return self.size[0] * self.size[1]

    def task_net(self, settings: Settings) -> nn.Module:
        if settings.image_net == "unet":
            net: nn.Module = self._unet(settings, settings.task_dropout)
        else:
            net = FCN(self.channels, _filters(settings))
        return self._normalised(net)

    def energy(self, settings: Settings, bounded: bool = False) -> Energy:
        kind = settings.image_net if settings.image_energy == "same" else settings.image_energy
        if kind == "unet":
            net = self._unet(settings, settings.energy_dropout)
            return self._normalised(FeatureEnergy(net, hidden=settings.image_width, local=not bounded))
        size = (settings.crop, settings.crop) if settings.crop else self.size
        energy = ImageEnergy(self.channels, size, _filters(settings), dropout=settings.energy_dropout)
        return self._normalised(energy)

    def search_ranges(self, settings: Settings) -> dict[str, tuple[float, float] | None]:
        # Cross-entropy sums over the pixels of a mask, so that an energy beside it weighs more.
        ranges: dict[str, tuple[float, float] | None] = {"energy_weight": (0.1, 1e3)}
        return ranges if settings.image_net == "unet" else {**ranges, "task_dropout": None}

    def crops(self, settings: Settings) -> Crops | None:
        changes = Distortion(settings.warp, settings.colour, settings.patches)
        distortion = None if changes == Distortion() else changes
        if settings.crop:
            return Crops(settings.crop, flips=settings.flips, distortion=distortion)
        if settings.flips or distortion:
            return Crops(self.size, 1, settings.flips, distortion)
        return None

    def inputs(self, x: Any) -> Dataset:
        """Images of one size, channels last, as `MaskData.from_arrays` takes them."""
        if isinstance(x, str | PathLike):
            advice = "lossnet.data.read_pictures reads files, lossnet predict writes masks of them"
            raise DataError(f"inputs are arrays of images, not {x!r}; {advice}")
        if not isinstance(x, np.ndarray):
            x = [np.asarray(image) for image in x]
            sizes = sorted({image.shape[:2] for image in x})
            if len(sizes) > 1:
                what = f"images have different sizes, such as {sizes[0]} and {sizes[1]}"
                raise DataError(f"{what}; predict for one size at a time")
        images = np.asarray(x)
        data = MaskData.from_arrays(images, np.zeros(images.shape[:3], np.uint8))
        if data.channels != self.channels:
            what = f"images have {data.channels} channel(s), the model's have {self.channels}"
            raise DataError(f"{what}; give (images, height, width, {self.channels}), also for one image")
        return data

    def fits(self, data: Loaded) -> bool:
        return isinstance(data.train, MaskData) and data.train.channels == self.channels

    def tune(self, relaxed: Tensor, truth: Tensor) -> float:
        return 0.5

    def measure(self, relaxed: Tensor, truth: Tensor, threshold: float) -> dict[str, float]:
        chosen = (relaxed >= threshold).to(relaxed.dtype)
        agreement = (chosen == truth).to(relaxed.dtype).mean()
        return {"iou": float(IoU()(chosen.unsqueeze(1), truth).mean()), "pixel_accuracy": float(agreement)}

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        return {"channels": self.channels, "size": list(self.size)}, {}

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Arrays) -> MaskTask:
        # Mean and deviation are buffers of the networks.
        height, width = content["size"]
        return cls(
            stored_number(content["channels"], "channels", 1, _LARGEST),
            (stored_number(height, "height", 1, _LARGEST), stored_number(width, "width", 1, _LARGEST)),
        )

    def _unet(self, settings: Settings, dropout: float) -> UNet:
        width, enlarge = settings.image_width, settings.image_enlarge
        return UNet(self.channels, width, dropout=dropout, enlarge=enlarge)

    def _normalised(self, net: Net) -> Net:
        if self.mean is not None and self.std is not None:
            for module in net.modules():
                if isinstance(module, Normalise):
                    module.mean.copy_(torch.tensor(self.mean).view_as(module.mean))
                    module.std.copy_(torch.tensor(self.std).view_as(module.std))
        return net


def _filters(settings: Settings) -> tuple[int, int, int]:
    """Of the papers' network and energy, which have 64, 128 and 128 at the default width."""
    width = settings.image_width
    return 2 * width, 4 * width, 4 * width
