"""Small data sets that need no download, made from the digits and photographs of scikit-learn."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from lossnet.data.examples import Examples, Facts
from lossnet.data.images import MaskData
from lossnet.data.splits import Split
from lossnet.data.tables import MultiLabelData
from lossnet.energies import Rule, exactly, sums_to

_SIDE = 8
_PIXELS = [f"pixel_{row}_{column}" for row in range(_SIDE) for column in range(_SIDE)]
_INK = 16.0  # the darkest pixel
_SEED = 0  # part of the data sets' definition: a run's own seed must not change the split
_PAIRS = (1800, 600, 600)
_SCENES = (600, 200, 400)
_SCENE_SIDE = 32
_DIGIT_SIDE = 24  # of a digit in a scene
_BAND = 64  # columns of a photograph that belong to one part
_BANDS = (0, 2, 0, 1, 0, 2, 0, 1, 0, 2)  # the part of each band, from left to right


def digits_completion() -> tuple[MultiLabelData, Split]:
    """See the upper half of a digit, say which pixels of the lower half are dark.

    32 inputs in [0, 1], 32 labels that depend on each other as strokes do, 1797 images.

    >>> data, split = digits_completion()
    >>> data.x.shape, data.y.shape, len(split.train), len(split.valid), len(split.test)
    ((1797, 32), (1797, 32), 1078, 360, 359)
    """
    images, _ = _digits()
    half = len(_PIXELS) // 2
    x, y = images[:, :half] / _INK, images[:, half:] >= _INK / 2
    data = MultiLabelData.from_arrays(x, y, _PIXELS[:half], _PIXELS[half:])
    return data, Split(*(np.sort(part) for part in _image_parts(len(images))))


def digits_pairs() -> tuple[MultiLabelData, Split]:
    """See two different digits drawn over each other, say which two.

    64 inputs in [0, 1], 10 labels of which two are true, 3000 pairs; no image occurs in two parts.

    >>> data, split = digits_pairs()
    >>> data.x.shape, data.y.shape, np.unique(data.y.sum(axis=1))
    ((3000, 64), (3000, 10), array([2], ...))
    """
    images, classes = _digits()
    pairs = np.concatenate(digit_pairs_images(), axis=1)
    x = images[pairs].max(axis=0) / _INK
    y = np.zeros((len(x), 10), dtype=np.uint8)
    y[np.arange(len(x)), classes[pairs]] = 1
    data = MultiLabelData.from_arrays(x, y, _PIXELS, [f"digit_{digit}" for digit in range(10)])
    return data, Split.consecutive(_PAIRS)


def two_digits() -> tuple[Rule, ...]:
    """Return what is known of pairs: there are two digits, which add up to a fact of each picture."""
    return exactly(2), sums_to()


def sums_of_digits(pairs: Examples) -> Facts:
    """Return what the digits of each of `digits_pairs` add up to.

    >>> sums_of_digits(digits_pairs()[0].take([0])).batch(np.array([0]))
    tensor([5.])
    """
    assert pairs.target is not None
    return Facts(pairs.target.batch(np.arange(len(pairs))) @ torch.arange(10.0))


def digit_pairs_images() -> list[NDArray[np.int64]]:
    """Return the two source images of each pair in `digits_pairs`, ``(2, pairs)`` for each part."""
    _, classes = _digits()
    random = np.random.default_rng(_SEED)
    parts = []
    for members, count in zip(_image_parts(len(classes)), _PAIRS, strict=True):
        pairs: dict[tuple[int, int], None] = {}
        while len(pairs) < count:
            one, other = sorted(int(i) for i in random.choice(members, size=2, replace=False))
            if classes[one] != classes[other]:
                pairs[one, other] = None
        parts.append(np.array(list(pairs), dtype=np.int64).T)
    return parts


def digits_scenes() -> tuple[MaskData, Split]:
    """See a digit painted on a piece of a photograph, say which pixels are its ink.

    Colour images of 32×32.  The ink fades into the background across the digit, patches hide parts of it
    (which still count), and bits of other digits lie about in the same ink, so that one must know digits
    to find all of one.  No digit and no region of a photograph occurs in two parts.  Needs Pillow, which
    reads the photographs, from the ``[images]`` extra.

    >>> data, split = digits_scenes()
    >>> len(data), data.channels, data.size, len(split.train), len(split.valid), len(split.test)
    (1200, 3, (32, 32), 600, 200, 400)
    """
    digits = np.stack([_enlarged(image) for image in _digits()[0]])
    photographs = _photographs()
    random = np.random.default_rng(_SEED)
    scenes = []
    for part, (members, count) in enumerate(zip(_image_parts(len(digits)), _SCENES, strict=True)):
        for digit in np.resize(random.permutation(members), count):
            others = digits[random.choice(members[members != digit], size=2, replace=False)]
            scenes.append(_scene(digits[digit], others, photographs, part, random))
    images, masks = (np.stack(arrays) for arrays in zip(*scenes, strict=True))
    return MaskData.from_arrays(images, masks), Split.consecutive(_SCENES)


def _digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    from sklearn.datasets import load_digits  # takes longer to import than torch

    bunch = load_digits()
    return bunch.data.astype(np.float32), bunch.target.astype(np.int64)


def _image_parts(count: int) -> list[NDArray[np.int64]]:
    order = np.random.default_rng(_SEED).permutation(count)
    return np.split(order, [round(0.6 * count), round(0.8 * count)])


def _enlarged(image: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the ink of a digit, from 0 to 1, at the size it has in a scene."""
    from scipy import ndimage

    square = image.reshape(_SIDE, _SIDE) / _INK
    larger = ndimage.zoom(square, _DIGIT_SIDE / _SIDE, order=1, grid_mode=True, mode="nearest")
    return np.asarray(larger, dtype=np.float64)


def _photographs() -> list[NDArray[np.float64]]:
    from sklearn.datasets import load_sample_images

    try:
        return [photograph / 255 for photograph in load_sample_images().images]
    except ImportError as error:
        raise ImportError("digits-scenes needs Pillow; install lossnet[images]") from error


def _scene(
    digit: NDArray[np.float64],
    others: NDArray[np.float64],
    photographs: list[NDArray[np.float64]],
    part: int,
    random: np.random.Generator,
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return an image ``(32, 32, 3)`` and its mask."""
    background = _background(photographs, part, random)
    ink = np.zeros((_SCENE_SIDE, _SCENE_SIDE))
    clutter = np.zeros_like(ink)
    _paste(ink, digit, random)
    for other in others:
        top, left = random.integers(_DIGIT_SIDE - 8, size=2)
        _paste(clutter, other[top : top + 8, left : left + 8], random)
    # Across the scene the ink fades from its own colour almost to the background's.
    usual = background.mean((0, 1))
    colours = random.random((3, 3))
    own = colours[np.linalg.norm(colours - usual, axis=1).argmax()]
    angle = random.uniform(0, 2 * np.pi)
    across, down = np.meshgrid(*[np.linspace(-1, 1, _SCENE_SIDE)] * 2)
    strength = np.clip(0.7 + 0.6 * (np.cos(angle) * across + np.sin(angle) * down), 0.2, 1)
    colour = usual + strength[..., None] * (own - usual)
    opacity = random.uniform(0.7, 1) * np.maximum(ink, clutter)
    for _ in range(2):
        top, left = random.integers(_SCENE_SIDE - 8, size=2)
        height, width = random.integers(4, 9, size=2)
        opacity[top : top + height, left : left + width] = 0
    image = background + opacity[..., None] * (colour - background)
    image += random.normal(scale=0.03, size=image.shape)
    return (image.clip(0, 1) * 255).round().astype(np.uint8), ink >= 0.4


def _background(
    photographs: list[NDArray[np.float64]], part: int, random: np.random.Generator
) -> NDArray[np.float64]:
    """Return the more varied of two pieces of the photographs, from the bands that belong to a part."""
    pieces = []
    for _ in range(2):
        photograph = photographs[random.integers(len(photographs))]
        band = random.choice(np.flatnonzero(np.array(_BANDS) == part))
        top = random.integers(photograph.shape[0] - _SCENE_SIDE + 1)
        left = band * _BAND + random.integers(_BAND - _SCENE_SIDE + 1)
        pieces.append(photograph[top : top + _SCENE_SIDE, left : left + _SCENE_SIDE])
    return max(pieces, key=np.std)


def _paste(canvas: NDArray[np.float64], stamp: NDArray[np.float64], random: np.random.Generator) -> None:
    """Put a stamp on the canvas, anywhere it fits."""
    top, left = (random.integers(_SCENE_SIDE - side + 1) for side in stamp.shape)
    place = canvas[top : top + stamp.shape[0], left : left + stamp.shape[1]]
    np.maximum(place, stamp, out=place)
