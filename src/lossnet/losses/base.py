"""What every energy loss can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from lossnet.spaces import Prediction

__all__ = ["EnergyFunction", "EnergyLoss", "with_truth"]

#: ``y ↦ E(x, y)``: candidates ``(batch, K, *event)`` give ``(batch, K)``; see `Energy.at`
EnergyFunction = Callable[[Tensor], Tensor]


class EnergyLoss(ABC):
    """Base class of losses that train an energy."""

    @abstractmethod
    def propose(self, prediction: Prediction) -> Tensor:
        """Candidates ``(batch, K, *event)`` taken from a task net's prediction.

        Relaxed ones carry the prediction's gradient: detach it to hold it fixed.  Samples carry none.
        """

    @abstractmethod
    def __call__(
        self, energy: EnergyFunction, truth: Tensor, candidates: Tensor, prediction: Prediction
    ) -> Tensor:
        """Loss of each instance, ``(batch,)``, for truth ``(batch, *event)`` and candidates."""

    def candidate_batches(
        self, truth: Tensor, prediction: Prediction, count: int
    ) -> Iterator[Callable[[EnergyFunction], Tensor]]:
        """Yield ``count`` times the loss ``(batch,)`` as a function of the energy, on fresh candidates."""
        for _ in range(count):
            yield partial(self._of, truth, self.propose(prediction), prediction)

    def _of(
        self, truth: Tensor, candidates: Tensor, prediction: Prediction, energy: EnergyFunction
    ) -> Tensor:
        return self(energy, truth, candidates, prediction)


def with_truth(truth: Tensor, candidates: Tensor) -> Tensor:
    """Candidates with the truth in front, ``(batch, 1 + K, *event)``."""
    return torch.cat([truth.unsqueeze(1).to(candidates.dtype), candidates], 1)
