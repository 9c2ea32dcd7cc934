"""Foreground pixels of images."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lossnet.data import Crops, MaskData, MaskStack, Pictures, Source, write_mask
from lossnet.decoding import Decision, Decoder, Threshold, tune_threshold
from lossnet.energies import Energy, FeatureEnergy, ImageEnergy
from lossnet.inputs import Arrays, Images, Input, Level, Picture, Schema, State
from lossnet.outputs.base import Output, Predicted, Ranges, known_values, rounded
from lossnet.scores import IoU
from lossnet.settings import Settings
from lossnet.spaces import Blocks, Field, Mask, Smooth, Space

if TYPE_CHECKING:
    from lossnet.report.evidence import Evidence, Section, Tell


@dataclass(frozen=True)
class Masks(Output[MaskStack]):
    """Masks of images, which have the images' size.

    >>> Masks().space(Settings(noise="blocks", noise_scale=3.0)).noise
    Blocks(size=3)
    """

    kind = "masks"
    summary = "foreground pixels"
    target = MaskStack
    level: ClassVar[Level] = "pixel"
    score = IoU()
    goals: ClassVar[Mapping[str, str]] = {"iou": "iou"}
    decoders: ClassVar[Mapping[str, Callable[[Decision], Decoder]]] = {
        "tuned": lambda decision: Threshold(decision.threshold),
        "0.5": lambda decision: Threshold(),
    }
    logits = 1

    @classmethod
    def fit(cls, parts: Sequence[MaskStack]) -> Masks:
        return cls()

    @classmethod
    def accepts(cls, y: Any) -> bool:
        return Images.accepts(y) and y.ndim == 3

    @classmethod
    def collect(cls, y: Any, source: Source) -> MaskStack:
        """Return masks ``(n, height, width)`` of 0 and 1, or 0 and 255."""
        target = MaskStack(y)
        return MaskData(source, target).target if isinstance(source, Pictures) else target

    @classmethod
    def describe(cls, parts: Sequence[MaskStack]) -> dict[str, Any]:
        return {"foreground": float(np.concatenate([part.masks for part in parts]).mean())}

    def space(self, settings: Settings) -> Mask:
        fields: dict[str, Field | None] = {
            "pixels": None,
            "blocks": Blocks(max(1, round(settings.noise_scale))),
            "smooth": Smooth(settings.noise_scale),
        }
        return Mask(fields[settings.noise])

    def decide(self, space: Space, relaxed: Tensor, truth: Tensor, start: Decision) -> Decision:
        if start.goal is None or not truth.any():
            return start
        return replace(start, threshold=tune_threshold(relaxed.flatten(1), truth.flatten(1), goal=start.goal))

    def known(self, known: Any, source: Source) -> Tensor:
        """Return what is known of masks, an array ``(n, height, width)``."""
        assert isinstance(source, Pictures)
        return known_values(known, (len(source), *source.size))

    def units(self, source: Input[Any, Any]) -> int:
        height, width = _images(source).size
        return height * width

    def energy(self, source: Input[Any, Any], settings: Settings, bounded: bool = False) -> Energy:
        images = _images(source)
        if images.architecture(settings, "energy") == "unet":
            net: Any = images.network(settings, "pixel", "energy")
            energy: Energy = FeatureEnergy(net, hidden=settings.image_width, local=not bounded)
        else:
            size = (settings.crop, settings.crop) if settings.crop else images.size
            filters, dropout = images.filters(settings), settings.energy_dropout
            energy = ImageEnergy(images.channels, size, filters, dropout=dropout)
        return images.normalised(energy)

    def search_ranges(self, source: Input[Any, Any], settings: Settings) -> Ranges:
        # Cross-entropy sums over the pixels of a mask, so that an energy beside it weighs more.
        unused: Ranges = {} if settings.image_net == "unet" else {"task_dropout": None}
        return {"energy_weight": (0.1, 1e3), **unused}

    def state(self) -> State:
        return {}, {}

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Arrays) -> Masks:
        return cls()

    def named(self, decoded: Tensor, source: Source) -> list[NDArray[np.uint8]]:
        return list(decoded.cpu().numpy().astype(np.uint8))

    def write(self, predicted: Iterable[Predicted], decoder: Decoder, place: Path | None) -> str:
        """Write a black and white PNG for each image into a folder."""
        if place is None:
            raise ValueError("masks are written as images: give a folder with -o")
        count = 0
        for part in predicted:
            names = part.names
            place.mkdir(parents=True, exist_ok=True)
            for index, mask in enumerate(self.named(part.outputs(decoder), part.source)):
                write_mask(place / f"{count if names is None else names[index]}.png", mask)
                count += 1
        return f"{count} mask{'s' * (count != 1)} in {place}"

    answer: ClassVar[Schema] = {
        "type": "object",
        "properties": {
            "mask": {"description": "0 and 1 in arrays; black and white in a base64 PNG"},
            "probabilities": {"description": "from 0 to 1 in arrays; grey levels in a base64 PNG"},
        },
    }

    def answers(
        self, relaxed: Tensor, decoder: Decoder, source: Source, items: Sequence[Picture]
    ) -> list[Any]:
        """Return nested arrays for nested arrays, base64 PNG for base64 files."""
        chosen, values = decoder(relaxed).numpy().astype(np.uint8), relaxed.numpy()
        return [
            {"mask": _png(mask * 255), "probabilities": _png(np.rint(levels * 255).astype(np.uint8))}
            if item.encoded
            else {"mask": mask.tolist(), "probabilities": rounded(levels)}
            for item, mask, levels in zip(items, chosen, values, strict=True)
        ]

    def check_item(self, item: Picture, source: Input[Any, Any], settings: Settings, searched: bool) -> None:
        images, size = _images(source), item.pixels.shape[-2:]
        views = images.views(settings, "pixel")
        what = f"the image is {size[0]}×{size[1]} (height × width)"
        if views is not None and any(have < need for have, need in zip(size, views.shape, strict=True)):
            raise ValueError(f"{what}; this model wants at least {'×'.join(map(str, views.shape))}")
        if views is None and searched and tuple(size) != images.size:
            raise ValueError(f"{what}; this model wants {'×'.join(map(str, images.size))}")

    def exported(
        self, predict: Callable[[Tensor], Tensor], x: Tensor, source: Input[Any, Any], settings: Settings
    ) -> Tensor:
        images = _images(source)
        views = images.views(settings, "pixel")
        if views is None:
            return predict(x)
        mean = _mean_over_crops(predict, views, images.size, x)
        if not views.flips:
            return mean
        return (mean + _mean_over_crops(predict, views, images.size, x.flip(-1)).flip(-1)) / 2

    def panels(self, evidence: Evidence, tell: Tell) -> list[Section]:
        from lossnet.outputs.panels.masks import sections

        return sections(evidence, tell)


def _images(source: Input[Any, Any]) -> Images:
    """Return the inputs, which must be images to have features of pixels."""
    assert isinstance(source, Images)
    return source


def _mean_over_crops(
    predict: Callable[[Tensor], Tensor], views: Crops, size: tuple[int, int], x: Tensor
) -> Tensor:
    """`Crops.averaged` for images of the one size that a file is for, without writing into slices."""
    (height, width), (rows, columns) = size, views.shape
    positions = views.positions(height, width)
    seen = torch.zeros(height, width)
    crops = []
    for top, left in positions:
        seen[top : top + rows, left : left + columns] += 1
        crops.append(x[:, :, top : top + rows, left : left + columns])
    outputs = predict(torch.cat(crops)).reshape(len(positions), -1, rows, columns)
    total = torch.zeros(())
    for place, (top, left) in enumerate(positions):
        total = total + F.pad(outputs[place], [left, width - left - columns, top, height - top - rows])
    return total / seen


def _png(levels: NDArray[np.uint8]) -> str:
    from lossnet.report.draw import png

    return base64.b64encode(png(levels)).decode("ascii")
