"""A model over a file of any size: rows are read, predicted and forgotten, some at a time.

Which files can be read so is up to their readers: `lossnet.data.stream_inputs` for labels,
`lossnet.tasks.TagTask.stream` for sentences.
"""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike

import torch
from torch import Tensor

from lossnet.data import MultiLabelData, Sentences, stream_inputs
from lossnet.prediction import Predictor
from lossnet.tasks import LabelTask, TagTask

__all__ = ["evaluate", "predict_labels", "predict_tags"]

Path = str | PathLike[str]


def predict_labels(
    model: Predictor, path: Path, device: torch.device | str = "cpu"
) -> Iterator[tuple[Tensor, Tensor]]:
    """Probabilities and truth of a file's rows, ``(rows, labels)`` each; truth is zeros where it has none."""
    task = model.task
    if not isinstance(task, LabelTask):
        raise TypeError(f"this model predicts {task.kind}, not sets of labels")
    for part in stream_inputs(path, task.feature_names, task.label_names):
        ready: MultiLabelData = part if task.preprocessor is None else task.preprocessor.apply(part)
        yield model.probabilities(ready, device)


def predict_tags(model: Predictor, path: Path) -> Iterator[list[tuple[str, str]]]:
    """The tokens of each sentence of a file with their tags."""
    task = model.task
    if not isinstance(task, TagTask):
        raise TypeError(f"this model predicts {task.kind}, not tags")
    for part in task.stream(path):
        yield from model.tag(part)


def evaluate(model: Predictor, path: Path, device: torch.device | str = "cpu") -> dict[str, float]:
    """Metrics over all rows of a file with labels, or all sentences of a column file with tags.

    They are what `Task.measure` gives for the file as a whole, up to the rounding of float32 sums.
    """
    task = model.task
    if isinstance(task, LabelTask):
        tally = task.tally(model.threshold)
        predictions = predict_labels(model, path, device)
    elif isinstance(task, TagTask):
        tally = task.tally(model.threshold)
        parts: Iterator[Sentences] = task.stream_tagged(path)
        predictions = (model.probabilities(part, device) for part in parts)
    else:
        raise TypeError(f"files are read in parts for labels and tags, not for {task.kind}")
    for relaxed, truth in predictions:
        tally.add(relaxed, truth)
    return tally.metrics()
