"""Base classes of energy losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from lossnet.scores import F1, Score
from lossnet.spaces import Prediction

if TYPE_CHECKING:
    from lossnet.settings import Settings

#: ``y ↦ E(x, y)``: candidates ``(batch, K, *event)`` give ``(batch, K)``; see `Energy.at`
EnergyFunction = Callable[[Tensor], Tensor]


class EnergyLoss(ABC):
    """Base class of losses that train an energy."""

    #: what the command line calls it
    name: ClassVar[str]
    #: settings of its own that are worth a search
    search: ClassVar[tuple[str, ...]] = ()
    #: whether the energy learns a score in [0, 1]; those of images then have no local term
    bounded: ClassVar[bool] = False
    #: whether the energy learns to be normalised, ``Σ_y exp(−E(x, y)) = 1``, and needs a `LogPartition`
    normalised: ClassVar[bool] = False

    @classmethod
    def from_settings(cls, settings: Settings, score: Score) -> Self:
        """Return the loss that settings describe, for outputs that should be good at a score."""
        return cls()

    @abstractmethod
    def propose(self, prediction: Prediction) -> Tensor:
        """Return candidates ``(batch, K, *event)`` taken from a task net's prediction.

        Relaxed ones carry the prediction's gradient: detach it to hold it fixed.  Samples carry none.
        """

    @abstractmethod
    def __call__(
        self, energy: EnergyFunction, truth: Tensor, candidates: Tensor, prediction: Prediction
    ) -> Tensor:
        """Return the loss of each instance, ``(batch,)``, for truth ``(batch, *event)`` and candidates."""

    def task_objective(self, energy: EnergyFunction) -> EnergyFunction:
        """Return the function of outputs that a task net descends, by default the energy itself."""
        return energy

    def candidate_batches(
        self, truth: Tensor, prediction: Prediction, count: int
    ) -> Iterator[Callable[[EnergyFunction], Tensor]]:
        """Yield ``count`` times the loss ``(batch,)`` as a function of the energy, on fresh candidates."""
        for _ in range(count):
            fresh = self.propose(prediction)
            yield lambda energy, fresh=fresh: self(energy, truth, fresh, prediction)  # type: ignore[misc]


@dataclass(frozen=True)
class ScoredLoss(EnergyLoss):
    """Base class of losses that compare the relaxed prediction ``ŷ`` with the truth by a score."""

    score: Score = field(default_factory=F1)

    @classmethod
    def from_settings(cls, settings: Settings, score: Score) -> Self:
        return cls(score)

    def propose(self, prediction: Prediction) -> Tensor:
        return prediction.relaxed.unsqueeze(1)


def with_truth(truth: Tensor, candidates: Tensor) -> Tensor:
    """Return candidates with the truth in front, ``(batch, 1 + K, *event)``."""
    return torch.cat([truth.unsqueeze(1).to(candidates.dtype), candidates], 1)
