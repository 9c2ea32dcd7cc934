"""Contrastive losses: tell the truth from samples of the task net's own distribution."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from lossnet import ops
from lossnet.losses.base import EnergyFunction, EnergyLoss, with_truth
from lossnet.scores import F1, Score
from lossnet.spaces import Prediction

if TYPE_CHECKING:
    from lossnet.settings import Settings


@dataclass(frozen=True)
class Ranking(EnergyLoss):
    """``−log softmax(−E(x, yᵏ))`` at the truth, against ``samples`` draws from ``P(·|x)`` (SEAL App. E).

    With a ``score``, ``cost(yᵏ, y)`` is added to each sample's exponent.

    >>> from lossnet.spaces import MultiLabel
    >>> prediction = Prediction(MultiLabel(2), torch.zeros(1, 2))
    >>> loss = Ranking(samples=3)
    >>> loss(lambda y: 0 * y.sum(-1), torch.ones(1, 2), loss.propose(prediction), prediction)  # log 4
    tensor([1.3863])
    """

    name: ClassVar[str] = "ranking"
    search: ClassVar[tuple[str, ...]] = ("samples",)
    samples: int = 20
    score: Score | None = None

    @classmethod
    def from_settings(cls, settings: Settings, score: Score) -> Self:
        return cls(settings.samples)

    def propose(self, prediction: Prediction) -> Tensor:
        return prediction.sample(self.samples)

    def __call__(
        self, energy: EnergyFunction, truth: Tensor, candidates: Tensor, prediction: Prediction
    ) -> Tensor:
        everything = with_truth(truth, candidates)
        return ops.contrast(energy(everything), self.offset(everything, truth, prediction))

    def candidate_batches(
        self, truth: Tensor, prediction: Prediction, count: int
    ) -> Iterator[Callable[[EnergyFunction], Tensor]]:
        for candidates in prediction.candidate_batches(truth, self.samples, count):
            offset = self.offset(candidates, truth, prediction)
            yield lambda energy, y=candidates, add=offset: ops.contrast(energy(y), add)  # type: ignore[misc]

    def __init_subclass__(cls) -> None:
        own = vars(cls)
        if ("propose" in own or "__call__" in own) and "candidate_batches" not in own:
            cls.candidate_batches = EnergyLoss.candidate_batches  # type: ignore[method-assign]  # by these

    def offset(self, candidates: Tensor, truth: Tensor, prediction: Prediction) -> Tensor | float:
        """Return what is added to each candidate's ``−E`` in the softmax, ``(batch, 1 + K)``."""
        if self.score is None:
            return 0.0
        cost = self.score.cost(candidates, truth)
        # Not every score gives an empty truth a cost of 0 against itself.
        return torch.cat([torch.zeros_like(cost[:, :1]), cost[:, 1:]], 1)


@dataclass(frozen=True)
class NCE(Ranking):
    """`Ranking` with ``−log P(yᵏ|x)`` in the exponent (SEAL Eq. 8 and 9, truth in the sum).

    At the optimum ``−E`` is the data's log-probability up to a constant (Ma & Collins 2018).  With a
    ``score`` it is L_NCE of UAI §3.3, its sign corrected.

    >>> from lossnet.spaces import MultiLabel
    >>> prediction = Prediction(MultiLabel(1), torch.tensor([[0.0]]))
    >>> NCE()(lambda y: 0 * y.sum(-1), torch.ones(1, 1), torch.zeros(1, 1, 1), prediction)  # log 2
    tensor([0.6931])
    """

    name: ClassVar[str] = "nce"

    def offset(self, candidates: Tensor, truth: Tensor, prediction: Prediction) -> Tensor:
        return super().offset(candidates, truth, prediction) - prediction.log_prob(candidates)


@dataclass(frozen=True)
class CD(Ranking):
    """`Ranking` with ``cost(yᵏ, y)`` in the exponent, 0 for the truth (UAI §3.3, L_CD, its sign corrected).

    >>> from lossnet.spaces import MultiLabel
    >>> prediction = Prediction(MultiLabel(1), torch.tensor([[0.0]]))
    >>> CD()(lambda y: y.sum(-1), torch.ones(1, 1), torch.zeros(1, 1, 1), prediction)
    tensor([2.1269])
    """

    name: ClassVar[str] = "cd"
    score: Score | None = field(default_factory=F1)

    @classmethod
    def from_settings(cls, settings: Settings, score: Score) -> Self:
        return cls(settings.samples, score)
