"""Prediction and evaluation over files of any size, part by part."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike

import torch

from lossnet.data import Target
from lossnet.outputs import Predicted
from lossnet.prediction import Predictor

__all__ = ["evaluate", "predict"]

Path = str | PathLike[str]


def predict(model: Predictor, path: Path, device: torch.device | str = "cpu") -> Iterator[Predicted]:
    """Yield the inputs of a file in parts, with probabilities ``(instances, *event)``."""
    task = model.task
    for part in task.input.stream(path, task.output.names):
        prepared = task.prepare_inputs(part.examples.source)
        relaxed, _ = model.probabilities(prepared, device)
        yield Predicted(prepared.source, relaxed, part.names)


def evaluate(model: Predictor, path: Path, device: torch.device | str = "cpu") -> dict[str, float]:
    """Return the metrics over all instances of a file with labels or tags.

    They are what the model's meter gives for the file as a whole, up to the rounding of float32 sums.
    """
    task, names = model.task, model.task.output.names

    def targets() -> Iterator[Target]:
        for part in task.input.stream(path, names, labelled=True):
            if part.examples.target is not None:
                yield part.examples.target

    meter, prepare = task.output.meter(model.decision), task.output.preparing(targets)
    for part in task.input.stream(path, names, labelled=True):
        source, target = part.examples.source, part.examples.target
        if target is None:
            raise ValueError(f"{path} has no {task.output.kind}; give a file with them")
        data = task.prepare_inputs(source).replace(target=prepare(target))
        relaxed, truth = model.probabilities(data, device)
        assert truth is not None
        meter.add(relaxed, truth)
    return meter.compute()
