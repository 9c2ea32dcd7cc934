"""Predictions for a whole data set."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from lossnet.data.examples import Dataset
from lossnet.methods.base import Predict


class Views(Protocol):
    """How inputs are seen where a network does not see them as a whole."""

    def training(self, dataset: Dataset) -> Dataset:
        """Return the same instances, each seen through a random view."""

    def averaged(self, predict: Predict) -> Predict:
        """Return predictions for whole inputs from those for views."""

    def quick(self, predict: Predict) -> Predict:
        """Return the same from few views, for validation between epochs."""


def predict(
    model: Predict, data: Dataset, device: torch.device | str = "cpu", batch_size: int = 512
) -> tuple[Tensor, Any]:
    """Return relaxed predictions and truth of all instances, ``(instances, *event)`` each, on ``device``.

    ``model`` maps ``(x, mask)`` to relaxed outputs; put its networks into evaluation mode first.  The truth
    is None where data have no labels.  What is unknown of it is 0 in both, so that it counts in no metric.
    """
    relaxed, truth = [], []
    with torch.no_grad():
        for rows in torch.arange(len(data), device=device).split(batch_size):
            batch = data.batch(rows).to(device)
            predicted = model(batch.x, batch.mask)
            relaxed.append(predicted if batch.known is None else predicted * batch.known)
            truth.append(batch.y)
    return _stack(relaxed), None if any(y is None for y in truth) else _stack(truth)


def are_sets(data: Dataset, device: torch.device) -> bool:
    """Whether the truth of all instances is made of ones and zeros."""
    batches = (data.batch(rows).y for rows in torch.arange(len(data), device=device).split(4096))
    return all(y is not None and bool(((y == 0) | (y == 1)).all()) for y in batches)


def _stack(parts: list[Tensor]) -> Tensor:
    """Concatenate along the first axis; events that differ in size are padded with zeros."""
    if len({part.shape[1:] for part in parts}) == 1:
        return torch.cat(parts)
    sizes = map(max, zip(*(part.shape[1:] for part in parts), strict=True))
    padded = parts[0].new_zeros(sum(map(len, parts)), *sizes)
    for rows, part in zip(padded.split([len(part) for part in parts]), parts, strict=True):
        rows[(slice(None), *map(slice, part.shape[1:]))] = part
    return padded
