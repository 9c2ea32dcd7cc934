"""What every kind of output can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from numpy.typing import NDArray
from torch import Tensor, nn

from lossnet.data import Crops, Loaded
from lossnet.decoding import Decoder, Threshold
from lossnet.energies import Energy
from lossnet.scores import Score
from lossnet.settings import Settings
from lossnet.spaces import Space
from lossnet.training import Dataset

__all__ = ["Arrays", "Task"]

#: what a model's safetensors file keeps for a task
Arrays = Mapping[str, NDArray[Any]]


class Task(ABC):
    """Everything about a run that depends on the kind of its outputs."""

    #: what model folders call it
    kind: ClassVar[str]
    #: the score that predictions should be good at
    score: ClassVar[Score]

    @abstractmethod
    def space(self, settings: Settings) -> Space:
        """The space of outputs."""

    @property
    @abstractmethod
    def units(self) -> int:
        """Labels or pixels of one output, which cross-entropy sums over and the score's cost does not."""

    @abstractmethod
    def task_net(self, settings: Settings) -> nn.Module:
        """A network from inputs to logits."""

    @abstractmethod
    def energy(self, settings: Settings, bounded: bool = False) -> Energy:
        """An energy of inputs and outputs; ``bounded`` if it is to learn a score between 0 and 1."""

    def search_ranges(self, settings: Settings) -> Mapping[str, tuple[float, float] | None]:
        """Return where settings are searched for this kind of output: None for what it does not use.

        Others are searched where `Settings` says; what has no range here or there is not searched.
        """
        return {}

    def crops(self, settings: Settings) -> Crops | None:
        """The views in which training and prediction see inputs, if not as a whole."""
        return None

    @abstractmethod
    def inputs(self, x: Any) -> Dataset:
        """Raw inputs, as a user has them, as a data set without truth."""

    @abstractmethod
    def fits(self, data: Loaded) -> bool:
        """Whether a data set poses this very task."""

    @abstractmethod
    def tune(self, relaxed: Tensor, truth: Tensor) -> float:
        """The threshold to predict with, from validation predictions and truth ``(instances, *event)``."""

    @abstractmethod
    def measure(self, relaxed: Tensor, truth: Tensor, threshold: float) -> dict[str, float]:
        """Metrics of predictions ``(instances, *event)``, as fractions of 1."""

    def decoder(self, threshold: float) -> Decoder:
        """From probabilities ``(instances, *event)`` to outputs of 0 and 1."""
        return Threshold(threshold)

    @abstractmethod
    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """What a model folder keeps: JSON and arrays, for `restore`."""

    @classmethod
    @abstractmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Arrays) -> Task:
        """The task that `state` described."""
