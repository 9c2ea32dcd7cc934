"""What predicts: from inputs as people have them to labels, masks or tags, by one model or several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lossnet.data import Sentences
from lossnet.decoding import Decoder
from lossnet.tasks import LabelTask, TagTask, Task
from lossnet.training import Dataset

__all__ = ["Ensemble", "Predictor"]


class Predictor(ABC):
    """Whatever has a task, a threshold and probabilities."""

    #: names of inputs and outputs and the preprocessing, the size of images, or a lexicon
    task: Task
    #: tuned on validation data
    threshold: float

    @abstractmethod
    def probabilities(self, data: Dataset, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Probabilities and truth of preprocessed data, ``(instances, *event)`` each, on ``device``."""

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the outputs, where they are labels."""
        return self._labels().label_names

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the input columns, where outputs are labels."""
        return self._labels().feature_names

    def _labels(self) -> LabelTask:
        if not isinstance(self.task, LabelTask):
            raise TypeError(f"this model predicts {self.task.kind}, not sets of labels")
        return self.task

    def predict_proba(self, x: Any, device: torch.device | str = "cpu") -> NDArray[Any]:
        """Probabilities of raw inputs: ``(instances, labels)`` for rows of features, or ``(instances, height,
        width)`` for images, channels last, or ``(instances, length, tags)`` for sentences, zeros on padding.

        Rows are lists or arrays of numbers, dense or sparse, in the order of `feature_names`; or data frames
        and lists of mappings, with columns by name.  Sentences are texts or lists of tokens.
        """
        probabilities, _ = self.probabilities(self.task.inputs(x), device)
        array: NDArray[Any] = probabilities.cpu().numpy()
        return array

    def predict(self, x: Any, decoder: Decoder | None = None) -> NDArray[np.uint8]:
        """Labels or pixels of raw inputs by the tuned threshold, or tags; unless another decoder is given."""
        decoder = decoder or self.task.decoder(self.threshold)
        probabilities = torch.from_numpy(self.predict_proba(x))
        return decoder(probabilities).numpy().astype(np.uint8)

    def tag(self, sentences: Sequence[str | Sequence[str]] | Sentences) -> list[list[tuple[str, str]]]:
        """Tokens and their tags, of texts or of sentences given as tokens."""
        if not isinstance(self.task, TagTask):
            raise TypeError(f"this model predicts {self.task.kind}, not tags")
        data = self.task.inputs(sentences)
        relaxed, _ = self.probabilities(data)
        return self.task.named(relaxed, data)


class Ensemble(Predictor):
    """Several models of one task, such as those of several seeds: their probabilities averaged.

    The threshold is the mean of theirs.  It costs as many forward passes as there are models.

    Args:
        models: with the same inputs and outputs, preprocessed alike.

    >>> import lossnet
    >>> from lossnet.build import build
    >>> task, settings = LabelTask(("u", "v"), ("a", "b")), lossnet.Settings(task_hidden=4)
    >>> names = ("cross-entropy", "none")
    >>> models = [lossnet.Model(build(*names, settings, task), names, settings, task, t) for t in (0.2, 0.4)]
    >>> ensemble = Ensemble(models)
    >>> ensemble.predict_proba([[1.0, 2.0]]).shape, round(ensemble.threshold, 3)
    ((1, 2), 0.3)
    """

    def __init__(self, models: Sequence[Predictor]) -> None:
        if not models:
            raise ValueError("give at least one model")
        for place, model in enumerate(models[1:], start=2):
            if not _alike(models[0].task, model.task):
                what = f"model {place} was not trained for the same inputs and outputs as the first"
                raise ValueError(f"{what}; average models of the same data and features")
        self.models = tuple(models)
        self.task = models[0].task
        self.threshold = sum(model.threshold for model in models) / len(models)

    def probabilities(self, data: Dataset, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Means over the models, and truth, ``(instances, *event)`` each, on ``device``."""
        mean, truth = self.models[0].probabilities(data, device)
        for model in self.models[1:]:
            mean = mean + model.probabilities(data, device)[0]
        return mean / len(self.models), truth


def _alike(first: Task, other: Task) -> bool:
    """Whether data prepared for one task are prepared for the other."""
    (mine, arrays), (its, others) = first.state(), other.state()
    same = first.kind == other.kind and mine == its and arrays.keys() == others.keys()
    return same and all(np.array_equal(array, others[name]) for name, array in arrays.items())
