"""Images of one size, or of any size to predict for."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lossnet.data import (
    Crops,
    DataError,
    Distortion,
    Examples,
    Pictures,
    Source,
    decode_picture,
    stream_pictures,
)
from lossnet.data.stored import stored_number
from lossnet.inputs.base import Arrays, FilePath, Fitting, Input, Level, Part, Question, Role, State
from lossnet.nets import FCN, MarkedImages, PooledImages, UNet
from lossnet.nets.fcn import Normalise
from lossnet.settings import Settings

if TYPE_CHECKING:
    from lossnet.report.markup import Markup

Net = TypeVar("Net", bound=nn.Module)
#: channels and pixels along a side of images that a stored model may have seen
_LARGEST = 1 << 16


@dataclass(frozen=True)
class Picture:
    """An image that came over HTTP: pixels ``(1, channels, height, width)``; whether as a file in base64."""

    pixels: NDArray[np.float32]
    encoded: bool


@dataclass(frozen=True)
class Images(Input[Pictures, Picture]):
    """Images: channels, size ``(height, width)``, and the mean and deviation of training pixels.

    >>> images = Images(channels=3, size=(32, 32))
    >>> images.network(Settings(), "pixel", outputs=1)(torch.rand(2, 3, 24, 24)).shape
    torch.Size([2, 24, 24])
    >>> images.network(Settings(), "instance", outputs=5)(torch.rand(2, 3, 24, 24)).shape
    torch.Size([2, 5])
    """

    kind = "images"
    summary = "images"
    source = Pictures
    levels: ClassVar[tuple[Level, ...]] = ("pixel", "instance")
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {"fcn": {}, "unet": {"image_net": "unet"}}

    channels: int
    size: tuple[int, int]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @classmethod
    def fit(cls, parts: Sequence[Pictures], fitting: Fitting) -> Images:
        train = parts[0]
        fitted = Normalise(train.channels).fit(torch.from_numpy(train.images))
        mean, std = (tuple(part.flatten().tolist()) for part in (fitted.mean, fitted.std))
        return cls(train.channels, train.size, mean, std)

    @classmethod
    def collect(cls, x: Any) -> Pictures:
        """Return images of one size, channels last, as `Pictures.from_arrays` takes them."""
        if isinstance(x, str | PathLike):
            advice = "lossnet.data.read_pictures reads files, lossnet predict writes masks of them"
            raise DataError(f"inputs are arrays of images, not {x!r}; {advice}")
        if not isinstance(x, np.ndarray):
            x = [np.asarray(image) for image in x]
            sizes = sorted({image.shape[:2] for image in x})
            if len(sizes) > 1:
                what = f"images have different sizes, such as {sizes[0]} and {sizes[1]}"
                raise DataError(f"{what}; give one size at a time")
        return Pictures.from_arrays(np.asarray(x))

    def read(self, x: Any) -> Pictures:
        pictures = self.collect(x)
        if pictures.channels != self.channels:
            what = f"images have {pictures.channels} channel(s), the model's have {self.channels}"
            raise DataError(f"{what}; give (images, height, width, {self.channels}), also for one image")
        return pictures

    @classmethod
    def accepts(cls, x: Any) -> bool:
        return isinstance(x, np.ndarray) and x.ndim in (3, 4) and x.dtype.kind in "biuf"

    def matches(self, source: Source) -> bool:
        return isinstance(source, Pictures) and source.channels == self.channels

    @classmethod
    def describe(cls, parts: Sequence[Pictures]) -> dict[str, Any]:
        height, width = parts[0].size
        return {"size": f"{height}×{width}", "channels": parts[0].channels}

    @property
    def width(self) -> int:
        return self.channels

    def network(
        self, settings: Settings, level: Level, role: Role = "task", outputs: int | None = None
    ) -> nn.Module:
        net: FCN | UNet
        if self.architecture(settings, role) == "unet":
            dropout = getattr(settings, f"{role}_dropout")
            width, enlarge = settings.image_width, settings.image_enlarge
            net = UNet(self.channels, width, dropout=dropout, enlarge=enlarge)
        else:
            net = FCN(self.channels, self.filters(settings))
        return self.normalised(PooledImages(net, outputs) if level == "instance" else net)

    def marked_network(self, settings: Settings, level: Level, marks: int, outputs: int) -> nn.Module:
        if level == "instance":
            return super().marked_network(settings, level, marks, outputs)
        more = (0.0,) * marks, (1.0,) * marks
        mean, std = (
            None if own is None else (*own, *beside)
            for own, beside in zip((self.mean, self.std), more, strict=True)
        )
        wide = replace(self, channels=self.channels + marks, mean=mean, std=std)
        return MarkedImages(wide.network(settings, level, "task", outputs))

    @staticmethod
    def architecture(settings: Settings, role: Role) -> str:
        """Return the name of the network that reads images: ``fcn`` or ``unet``."""
        same = role == "task" or settings.image_energy == "same"
        return settings.image_net if same else settings.image_energy

    @staticmethod
    def filters(settings: Settings) -> tuple[int, int, int]:
        """Return the filters of the papers' network and energy: 64, 128 and 128 at the default width."""
        width = settings.image_width
        return 2 * width, 4 * width, 4 * width

    def normalised(self, net: Net) -> Net:
        """Return a network whose inputs are normalised as training images were."""
        if self.mean is not None and self.std is not None:
            for module in net.modules():
                if isinstance(module, Normalise):
                    module.mean.copy_(torch.tensor(self.mean).view_as(module.mean))
                    module.std.copy_(torch.tensor(self.std).view_as(module.std))
        return net

    def views(self, settings: Settings, level: Level) -> Crops | None:
        changes = Distortion(settings.warp, settings.colour, settings.patches)
        distortion = None if changes == Distortion() else changes
        if not (settings.crop or settings.flips or distortion):
            return None
        if level != "pixel":
            what = "crop, flips, warp, colour and patches change masks along with images"
            raise ValueError(f"{what}; leave them out for outputs of whole images")
        if settings.crop:
            return Crops(settings.crop, flips=settings.flips, distortion=distortion)
        return Crops(self.size, 1, settings.flips, distortion)

    def state(self) -> State:
        return {"channels": self.channels, "size": list(self.size)}, {}

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Arrays) -> Images:
        # Mean and deviation are buffers of the networks.
        height, width = content["size"]
        return cls(
            stored_number(content["channels"], "channels", 1, _LARGEST),
            (stored_number(height, "height", 1, _LARGEST), stored_number(width, "width", 1, _LARGEST)),
        )

    def stream(
        self,
        path: FilePath,
        names: Sequence[str] = (),
        labelled: bool = False,
        encoding: str | None = None,
    ) -> Iterator[Part]:
        for name, image in stream_pictures(path, self.channels):
            yield Part(Examples(self.read(image[None])), [name])

    question: ClassVar[Question] = Question(
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"image": {"type": "string", "contentEncoding": "base64"}},
                    "required": ["image"],
                    "additionalProperties": False,
                },
                {"type": "array", "items": {"type": "array"}, "minItems": 1},
            ]
        },
        most=1 << 22,
        together=1 << 18,
        unit="pixels",
    )

    def parse(self, given: Any) -> Picture:
        """Return an image: an object with a base64 PNG or JPEG, or nested arrays, channels last."""
        encoded = isinstance(given, dict)
        pictures = Pictures.from_arrays((self._decoded(given) if encoded else _nested(given))[None])
        if pictures.channels != self.channels:
            raise ValueError(f"{pictures.channels} channel(s); this model wants {self.channels}")
        return Picture(pictures.images, encoded)

    def _decoded(self, given: Mapping[str, Any]) -> NDArray[np.uint8]:
        if set(given) != {"image"} or not isinstance(given["image"], str):
            raise ValueError('an image is {"image": "base64 of a PNG or JPEG file"}, or nested arrays')
        try:
            content = base64.b64decode(given["image"], validate=True)
        except ValueError:
            raise ValueError("the image is not base64") from None
        return decode_picture(content, self.channels, self.question.most)

    def sample(self) -> Any:
        """Return a picture that gets lighter from left to right."""
        from lossnet.report.draw import png

        height, width = self.size
        levels = np.tile(np.linspace(0, 255, width).astype(np.uint8), (height, 1))
        return {"image": base64.b64encode(png(levels)).decode("ascii")}

    def cost(self, item: Picture) -> int:
        return int(item.pixels[0, 0].size)

    def shape(self, item: Picture) -> tuple[int, ...]:
        return item.pixels.shape

    def collate(self, items: Sequence[Picture]) -> Pictures:
        return Pictures(np.concatenate([item.pixels for item in items]))

    exported_name = "images"

    def exported_axes(self, settings: Settings, level: Level) -> dict[int, str]:
        fixed = self.views(settings, level) is not None or self._multiple(settings) is None
        return {0: "batch"} if fixed else {0: "batch", 1: "height", 2: "width"}

    def _multiple(self, settings: Settings) -> int | None:
        """Return what sides must be multiples of in an exported file; None if they must be the images' own.

        The transposed convolutions of the papers' network are told the size of their output when traced.
        """
        multiple = 4 if settings.image_net == "fcn" else 1
        return None if any(side % multiple for side in self.size) else multiple

    def exported(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return x.permute(0, 3, 1, 2), None

    def examples(self, settings: Settings, level: Level, batch: int, seed: int) -> Iterator[NDArray[Any]]:
        (height, width), multiple = self.size, self._multiple(settings) or 1
        sizes = [(height, width)]
        if seed and len(self.exported_axes(settings, level)) > 1:
            sizes += [(height + 2 * multiple, width), (height, width + multiple)]
        random = np.random.default_rng(seed)
        for size in sizes:
            yield random.random((batch, *size, self.channels), dtype=np.float32)

    def described(self, settings: Settings, level: Level) -> dict[str, Any]:
        any_size = len(self.exported_axes(settings, level)) > 1
        size = {"size_multiple": self._multiple(settings)} if any_size else {"size": self.size}
        return {"channels": self.channels, **size}

    def picture(self, source: Source, row: int) -> Markup:
        """Return the image, in grey unless it has three channels."""
        from lossnet.report.draw import image

        assert isinstance(source, Pictures)
        pixels = source.images[row]
        return image(pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels.mean(0), "image")


def _nested(given: Any) -> NDArray[Any]:
    try:
        pixels = np.array(given)
    except (ValueError, OverflowError):  # rows that differ in length
        pixels = np.array(None)
    if pixels.dtype.kind not in "iuf" or pixels.ndim not in (2, 3) or not pixels.size:
        raise ValueError("an image is an array of rows of pixels, numbers or arrays of channels")
    return pixels
