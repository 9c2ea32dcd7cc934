"""Logistic regression on what can be read off an input: a cheap model that a network should beat.

==============  ==================================================================================
inputs          what the model sees
==============  ==================================================================================
feature table   the columns, as the network sees them
sentences       for a tag: the token, its ending and shape, and the tokens beside it; for labels: its words
images          for a mask: the colours of the 5×5 pixels around, and the place; for labels: all pixels
==============  ==================================================================================
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lossnet.data import Examples, FeatureTable, LabelTable, Pictures, Sentences
from lossnet.spaces import Space

__all__ = ["LinearModel"]

#: columns in which properties of words are counted, by a hash
_COLUMNS = 1 << 13
#: pixels on each side that count as the surroundings of one
_AROUND = 2
#: units (tokens, pixels) that are fitted on, at most
_MOST_UNITS = 20_000
#: training instances and weights with which fitting is a matter of seconds
_FEW_INSTANCES, _MOST_WEIGHTS = 200, 300_000


class LinearModel:
    """Logistic regression of labels, tags or pixels, each predicted by itself.

    It needs no settings, seed or validation data.  Labels are fitted one by one, tags as one of several.

    Args:
        train: prepared instances with outputs.
        space: of the outputs.

    >>> from lossnet.data import MultiLabelData
    >>> from lossnet.spaces import MultiLabel
    >>> data = MultiLabelData.from_arrays([[-1.0], [1.0], [-2.0], [2.0]], [[1, 0], [1, 1], [1, 0], [1, 1]])
    >>> LinearModel(data, MultiLabel(2)).predict(data).round()
    tensor([[1., 0.],
            [1., 1.],
            [1., 0.],
            [1., 1.]])
    """

    def __init__(self, train: Examples, space: Space) -> None:
        from sklearn.linear_model import LogisticRegression  # takes longer to import than torch

        self.space = space
        batch = train.batch(torch.arange(len(train)))
        truth = self._units(batch.y, batch.mask)
        rows = np.arange(len(truth))
        if len(rows) > _MOST_UNITS:
            rows = np.sort(np.random.default_rng(0).choice(rows, _MOST_UNITS, replace=False))
        x, truth = self._seen(train)[rows], truth[rows]
        targets = [truth.argmax(1)] if space.unit_dims else list(truth.T.astype(np.int64))
        self._parts: list[Any] = []
        for target in targets:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a few steps short of convergence will do
                varies = len(np.unique(target)) > 1
                self._parts.append(LogisticRegression(max_iter=200).fit(x, target) if varies else target[0])

    @classmethod
    def is_cheap(cls, train: Examples) -> bool:
        """Whether the model is there for such data, and fitted in seconds: few instances of a known kind.

        >>> from lossnet.data.examples import Resident
        >>> cls, rows = LinearModel, FeatureTable(np.zeros((2, 3)))
        >>> cls.is_cheap(Examples(rows)), cls.is_cheap(Examples(Resident(torch.zeros(2, 3))))
        (True, False)
        """
        width = train.source.width if isinstance(train.source, FeatureTable) else 0
        outputs = len(train.target.names) if isinstance(train.target, LabelTable) else 1
        known = isinstance(train.source, FeatureTable | Sentences | Pictures)
        return known and len(train) <= _FEW_INSTANCES and width * outputs <= _MOST_WEIGHTS

    def predict(self, data: Examples) -> Tensor:
        """Return probabilities ``(instances, *event)``; those of padding are zeros."""
        batch = data.batch(torch.arange(len(data)))
        relaxed = torch.zeros_like(batch.y)
        units, x = self._units(relaxed, batch.mask), self._seen(data)
        for column, part in enumerate(self._parts):
            if not hasattr(part, "classes_"):
                units[:, part if self.space.unit_dims else column] = 1.0 if self.space.unit_dims else part
            elif self.space.unit_dims:
                units[:, part.classes_] = part.predict_proba(x)
            else:
                units[:, column] = part.predict_proba(x)[:, 1]
        values = torch.from_numpy(units).to(relaxed)
        if batch.mask is not None:
            relaxed[batch.mask > 0] = values
            return relaxed
        return values.reshape(relaxed.shape)

    def _units(self, outputs: Tensor, mask: Tensor | None) -> NDArray[Any]:
        """Return the outputs of all real units in turn, ``(units, values)``."""
        if mask is not None:
            outputs = outputs[mask > 0]
        width = outputs.shape[-1] if self.space.event_dims == 1 or self.space.unit_dims else 1
        return outputs.reshape(-1, width).numpy().copy()

    def _seen(self, data: Examples) -> Any:
        """Return what the model sees of all units in turn, ``(units, columns)``."""
        single = self.space.event_dims == 1
        if isinstance(data.source, FeatureTable):
            return data.source.matrix
        if isinstance(data.source, Sentences):
            return _counted(_words(data.source) if single else _contexts(data.source))
        assert isinstance(data.source, Pictures)
        images = data.source.images
        return images.reshape(len(images), -1) if single else _surroundings(images)


def _counted(properties: Iterator[list[str]]) -> Any:
    from sklearn.feature_extraction import FeatureHasher

    return FeatureHasher(_COLUMNS, input_type="string", alternate_sign=False).transform(properties)


def _words(sentences: Sentences) -> Iterator[list[str]]:
    """Yield the different words of each sentence."""
    for tokens in sentences.tokens:
        yield sorted({token.lower() for token in tokens})


def _contexts(sentences: Sentences) -> Iterator[list[str]]:
    """Yield properties of each token: itself, its endings and shape, and the tokens beside it."""
    for tokens in sentences.tokens:
        lower = ["<", *(token.lower() for token in tokens), ">"]
        for place, token in enumerate(tokens, start=1):
            shape = re.sub(r"[^\W\d_X]", "x", re.sub(r"\d", "0", re.sub(r"[A-Z]", "X", token)))
            own = lower[place]
            yield [
                "bias",
                f"word {own}",
                "shape " + re.sub(r"(.)\1+", r"\1", shape),
                f"first {token[0]}",
                *(f"ending {own[-count:]}" for count in (1, 2, 3)),
                f"before {lower[place - 1]}",
                f"after {lower[place + 1]}",
            ]


def _surroundings(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the colours around each pixel and its place, ``(pixels, columns)``."""
    count, channels, height, width = images.shape
    side = 2 * _AROUND + 1
    padded = np.pad(images, ((0, 0), (0, 0), (_AROUND, _AROUND), (_AROUND, _AROUND)), mode="edge")
    around = np.lib.stride_tricks.sliding_window_view(padded, (side, side), axis=(2, 3))
    colours = around.transpose(0, 2, 3, 1, 4, 5).reshape(count, height, width, channels * side**2)
    down, across = np.meshgrid(np.linspace(-1, 1, height), np.linspace(-1, 1, width), indexing="ij")
    place = np.stack([down, across, down**2, across**2], axis=-1).astype(np.float32)
    whole = np.broadcast_to(place, (count, *place.shape))
    return np.concatenate([colours, whole], axis=-1).reshape(-1, channels * side**2 + place.shape[-1])
