"""Two small data sets that need no download, made from scikit-learn's handwritten digits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from lossnet.data.dataset import MultiLabelData
from lossnet.data.splits import Split

__all__ = ["digits_completion", "digits_pairs"]

_SIDE = 8
_INK = 16.0  # the darkest pixel
_SEED = 0  # part of the data sets' definition: a run's own seed must not change the split
_PAIRS = (1800, 600, 600)


def digits_completion() -> tuple[MultiLabelData, Split]:
    """See the upper half of a digit, say which pixels of the lower half are dark.

    32 inputs in [0, 1], 32 labels that hang together as strokes do, 1797 images.

    >>> data, split = digits_completion()
    >>> data.x.shape, data.y.shape, len(split.train), len(split.valid), len(split.test)
    ((1797, 32), (1797, 32), 1078, 360, 359)
    """
    images, _ = _digits()
    half = _SIDE * _SIDE // 2
    names = [f"pixel_{row}_{column}" for row in range(_SIDE) for column in range(_SIDE)]
    data = MultiLabelData.from_arrays(
        images[:, :half] / _INK, images[:, half:] >= _INK / 2, names[:half], names[half:]
    )
    return data, Split(*(np.sort(part) for part in _image_parts(len(images))))


def digits_pairs() -> tuple[MultiLabelData, Split]:
    """See two different digits drawn over each other, say which two.

    64 inputs in [0, 1], 10 labels of which two are true, 3000 pairs; no image occurs in two parts.

    >>> data, split = digits_pairs()
    >>> data.x.shape, data.y.shape, np.unique(data.y.sum(axis=1))
    ((3000, 64), (3000, 10), array([2], ...))
    """
    images, classes = _digits()
    first, second = (np.concatenate(side) for side in zip(*digit_pairs_images(), strict=True))
    x = np.maximum(images[first], images[second]) / _INK
    y = np.zeros((len(x), 10), dtype=np.uint8)
    y[np.arange(len(x)), classes[first]] = 1
    y[np.arange(len(x)), classes[second]] = 1
    names = [f"pixel_{row}_{column}" for row in range(_SIDE) for column in range(_SIDE)]
    data = MultiLabelData.from_arrays(x, y, names, [f"digit_{digit}" for digit in range(10)])
    ends = np.cumsum(_PAIRS)
    parts = np.split(np.arange(ends[-1], dtype=np.int64), ends[:-1])
    return data, Split(*parts)


def digit_pairs_images() -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The two source images of each pair in `digits_pairs`, for each part."""
    _, classes = _digits()
    random = np.random.default_rng(_SEED)
    parts = _image_parts(len(classes))
    return [_draw_pairs(part, classes, count, random) for part, count in zip(parts, _PAIRS, strict=True)]


def _digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    bunch = load_digits()
    return bunch.data.astype(np.float32), bunch.target.astype(np.int64)


def _image_parts(count: int) -> list[NDArray[np.int64]]:
    order = np.random.default_rng(_SEED).permutation(count)
    return np.split(order, [round(0.6 * count), round(0.8 * count)])


def _draw_pairs(
    part: NDArray[np.int64], classes: NDArray[np.int64], count: int, random: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """``count`` different pairs of images of different digits, from one part."""
    pairs: dict[tuple[int, int], None] = {}
    while len(pairs) < count:
        one, other = sorted(int(i) for i in random.choice(part, size=2, replace=False))
        if classes[one] != classes[other]:
            pairs[one, other] = None
    chosen = np.array(list(pairs), dtype=np.int64)
    return chosen[:, 0], chosen[:, 1]
