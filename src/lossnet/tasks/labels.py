"""Sets of labels from feature vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from lossnet.data import DataError, Loaded, MultiLabelData, Preprocessor
from lossnet.data.readers import named_rows
from lossnet.data.stored import stored_strings
from lossnet.decoding import Decoder, ExpectedF1, Threshold, tune_threshold
from lossnet.energies import LabelInteraction, Local, Sum
from lossnet.nets import MLP
from lossnet.scores import F1, LabelTally, Tally, label_metrics
from lossnet.settings import Settings
from lossnet.spaces import MultiLabel
from lossnet.tasks.base import Arrays, Task
from lossnet.training import Dataset

__all__ = ["LabelTask", "decoded_metrics"]


@dataclass(frozen=True)
class LabelTask(Task):
    """Names of inputs and labels, and the preprocessing fitted on training data (none by default).

    >>> task = LabelTask.of_size(inputs=4, labels=3)
    >>> task.label_names
    ('label_0', 'label_1', 'label_2')
    """

    kind = "labels"
    score = F1()

    feature_names: tuple[str, ...]
    label_names: tuple[str, ...]
    preprocessor: Preprocessor | None = None

    @classmethod
    def of(cls, data: Loaded) -> LabelTask:
        """The task that a loaded data set poses."""
        train = data.train
        assert isinstance(train, MultiLabelData)
        return cls(train.feature_names, train.label_names, data.preprocessor)

    @classmethod
    def of_size(cls, inputs: int, labels: int) -> LabelTask:
        """A task whose columns have numbers for names."""
        return cls(_numbered("feature", inputs), _numbered("label", labels))

    def space(self, settings: Settings) -> MultiLabel:
        return MultiLabel(len(self.label_names))

    @property
    def units(self) -> int:
        return len(self.label_names)

    def task_net(self, settings: Settings) -> MLP:
        s = settings
        return MLP(len(self.feature_names), s.task_hidden, s.task_layers, self.units, s.task_dropout)

    def energy(self, settings: Settings, bounded: bool = False) -> Sum:
        s = settings
        encoder = MLP(len(self.feature_names), s.energy_hidden, s.energy_layers, dropout=s.energy_dropout)
        features = encoder.width if s.conditioned else None
        interaction = LabelInteraction(self.units, s.global_hidden, features)
        return Sum(encoder, Local(encoder.width, self.units), interaction)

    def inputs(self, x: Any) -> Dataset:
        """Rows of numbers, in the order of our features; or, by name, a data frame or a list of mappings.

        Named rows may also have the text that features such as ``country=fr`` were made of.
        """
        if isinstance(x, str | PathLike):
            what = f"inputs are rows of numbers, not {x!r}"
            raise DataError(f"{what}; lossnet.data.read_inputs reads a file")
        rows = self._rows(x)
        if not sparse.issparse(rows):
            try:
                rows = np.asarray(rows)
            except ValueError:
                raise DataError("inputs have rows of different lengths; give them as many numbers") from None
        if rows.ndim != 2 or rows.shape[1] != len(self.feature_names):
            wanted = f"(rows, {len(self.feature_names)}), a column for each of model.feature_names"
            raise DataError(f"inputs have the shape {rows.shape}; they need {wanted}")
        labels = np.zeros((rows.shape[0], self.units), dtype=np.uint8)
        data = MultiLabelData.from_arrays(rows, labels, self.feature_names, self.label_names)
        return data if self.preprocessor is None else self.preprocessor.apply(data)

    def _rows(self, x: Any) -> Any:
        names = list(self.feature_names)
        if hasattr(x, "isna") and all(isinstance(name, str) for name in x.columns):
            if set(names) <= set(x.columns):
                return x[names].to_numpy(dtype=np.float32, na_value=np.nan)
            lists = {name: (x[name].tolist(), x[name].isna().tolist()) for name in x.columns}
            columns = {
                name: [None if absent else value for value, absent in zip(*found, strict=True)]
                for name, found in lists.items()
            }
            return named_rows(columns, names).x
        if isinstance(x, Sequence) and len(x) and all(isinstance(row, Mapping) for row in x):
            keys = dict.fromkeys(key for row in x for key in row)
            return named_rows({key: [row.get(key) for row in x] for key in keys}, names).x
        return x

    def fits(self, data: Loaded) -> bool:
        train = data.train
        names = (self.feature_names, self.label_names)
        return isinstance(train, MultiLabelData) and (train.feature_names, train.label_names) == names

    def tune(self, relaxed: Tensor, truth: Tensor) -> float:
        return tune_threshold(relaxed, truth)

    def measure(self, relaxed: Tensor, truth: Tensor, threshold: float) -> dict[str, float]:
        return decoded_metrics(relaxed, truth, threshold)

    def tally(self, threshold: float) -> Tally:
        """What `measure` gives, for predictions that come in parts."""
        return _Tally(threshold)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        names = {"labels": list(self.label_names), "features": list(self.feature_names)}
        arrays = {} if self.preprocessor is None else self.preprocessor.state()
        return names, {f"preprocessor/{name}": array for name, array in arrays.items()}

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Arrays) -> LabelTask:
        found = {name.removeprefix("preprocessor/"): array for name, array in arrays.items()}
        preprocessor = Preprocessor.from_state(found) if found else None
        features = stored_strings(content["features"], "features", least=1)
        if preprocessor is not None and len(preprocessor.impute) != len(features):
            raise ValueError("preprocessing and features differ in number")
        return cls(features, stored_strings(content["labels"], "labels", least=1), preprocessor)


def decoded_metrics(probabilities: Tensor, truth: Tensor, threshold: float) -> dict[str, float]:
    """Each decoder in its own column: ``f1`` is at 0.5, ``f1_tuned`` at the threshold, ``f1_expected``
    of the sets with the highest expected F1; the other metrics are at 0.5.

    >>> import torch
    >>> decoded_metrics(torch.tensor([[0.3, 0.1]]), torch.tensor([[1.0, 0.0]]), 0.2)["f1_tuned"]
    1.0
    """
    return {
        **label_metrics(Threshold()(probabilities), truth),
        "f1_tuned": label_metrics(Threshold(threshold)(probabilities), truth)["f1"],
        "threshold": threshold,
        "f1_expected": label_metrics(ExpectedF1()(probabilities), truth)["f1"],
    }


class _Tally(Tally):
    """`decoded_metrics` of probabilities that come in parts."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._decoders: tuple[Decoder, ...] = (Threshold(), Threshold(threshold), ExpectedF1())
        self._tallies = tuple(LabelTally() for _ in self._decoders)

    def add(self, relaxed: Tensor, truth: Tensor) -> None:
        for decoder, tally in zip(self._decoders, self._tallies, strict=True):
            tally.add(decoder(relaxed), truth)

    def metrics(self) -> dict[str, float]:
        plain, tuned, expected = (tally.metrics() for tally in self._tallies)
        found = {"f1_tuned": tuned["f1"], "threshold": self._threshold, "f1_expected": expected["f1"]}
        return plain | found


def _numbered(kind: str, count: int) -> tuple[str, ...]:
    return tuple(f"{kind}_{index}" for index in range(count))
