"""Contrastive losses: tell the truth from samples of the task net's own distribution."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from lossnet import kernels
from lossnet.losses.base import EnergyFunction, EnergyLoss, with_truth
from lossnet.scores import F1, Score
from lossnet.spaces import MultiLabel, Prediction
from lossnet.sparse import unbind

if TYPE_CHECKING:
    from lossnet.settings import Settings

__all__ = ["CD", "NCE", "Ranking"]

#: so many numbers of candidates at most are made at once for several rounds on a GPU
AT_ONCE = 1 << 26
#: and so many of one instance on a CPU
OF_EACH = 1 << 14


@dataclass(frozen=True)
class Ranking(EnergyLoss):
    """``−log softmax(−E(x, yᵏ))`` at the truth, against ``samples`` draws from ``P(·|x)`` (SEAL App. E).

    `NCE` corrects for how probable each sample was.  With a ``score``, ``cost(yᵏ, y)`` is added to each
    sample's exponent; `CD` is this loss with one.

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
        return _contrast(everything, self.offset(everything, truth, prediction), energy)

    def rounds(
        self, truth: Tensor, prediction: Prediction, count: int
    ) -> Iterator[Callable[[EnergyFunction], Tensor]]:
        together = self._together(truth, prediction, count)
        if not together:
            yield from super().rounds(truth, prediction, count)
            return
        for begun in range(0, count, together):
            yield from self._rounds_at_once(truth, prediction, min(together, count - begun))

    def _together(self, truth: Tensor, prediction: Prediction, count: int) -> int:
        """Candidates of how many rounds are better drawn and weighed at once; 0 for each by itself."""
        if truth.is_cuda:  # all take the time of one, if there is room for them
            plain = type(self) in (Ranking, NCE) and self.score is None
            fit = count * self.samples * truth.numel() <= AT_ONCE
            return count if plain and fit and count > 1 else 0
        space, plain = prediction.space, type(self) in (Ranking, NCE, CD) and type(prediction) is Prediction
        constant = truth.device.type == "cpu" and not truth.requires_grad
        if not (plain and constant and isinstance(space, MultiLabel)):
            return 0
        # Sets of labels that are drawn for rounds know where their ones are.  How many are drawn before other
        # random numbers must not depend on the rows: replicas and processes have more or less of them.
        return max(1, OF_EACH // max(1, self.samples * space.labels))

    def _rounds_at_once(
        self, truth: Tensor, prediction: Prediction, count: int
    ) -> Iterator[Callable[[EnergyFunction], Tensor]]:
        candidates = prediction.rounds(truth, self.samples, count)
        offset = self.offset(candidates, truth, prediction)
        offsets = offset if isinstance(offset, Tensor) else [offset] * count
        for own, shift in zip(unbind(candidates), offsets, strict=True):
            yield partial(_contrast, own, shift)

    def offset(self, candidates: Tensor, truth: Tensor, prediction: Prediction) -> Tensor | float:
        """What is added to each candidate's ``−E`` in the softmax, ``(…, batch, 1 + K)``.

        Candidates may be those of several rounds, ``(rounds, batch, 1 + K, *event)``.
        """
        if self.score is None:
            return 0.0
        if (
            candidates.dim() > truth.dim() + 1 and type(self.score) is not F1
        ):  # which takes all rounds at once
            cost = torch.stack([self.score.cost(own, truth) for own in candidates])
        else:
            cost = self.score.cost(candidates, truth)
        # Not every score gives an empty truth a cost of 0 against itself.
        return torch.cat([torch.zeros_like(cost[..., :1]), cost[..., 1:]], -1)


def _contrast(candidates: Tensor, offset: Tensor | float, energy: EnergyFunction) -> Tensor:
    """``−log softmax(offset − E)`` of the first of candidates ``(batch, 1 + K, *event)``, ``(batch,)``."""
    energies = energy(candidates)
    found = kernels.contrast(energies, offset)
    return -(offset - energies).log_softmax(1)[:, 0] if found is None else found


@dataclass(frozen=True)
class NCE(Ranking):
    """`Ranking` with ``−log P(yᵏ|x)`` in the exponent (SEAL Eq. 8 and 9, truth in the sum).

    At the optimum ``−E`` is the data's log-probability up to a constant (Ma & Collins 2018).  With a
    ``score`` it is L_NCE of UAI §3.3, its sign put right.

    >>> from lossnet.spaces import MultiLabel
    >>> prediction = Prediction(MultiLabel(1), torch.tensor([[0.0]]))
    >>> loss = NCE(samples=1)
    >>> loss(lambda y: 0 * y.sum(-1), torch.ones(1, 1), torch.zeros(1, 1, 1), prediction)  # log 2
    tensor([0.6931])
    """

    name: ClassVar[str] = "nce"

    def offset(self, candidates: Tensor, truth: Tensor, prediction: Prediction) -> Tensor:
        return super().offset(candidates, truth, prediction) - prediction.log_prob(candidates)


@dataclass(frozen=True)
class CD(Ranking):
    """`Ranking` with ``cost(yᵏ, y)`` in the exponent, 0 for the truth (UAI §3.3, L_CD, sign put right).

    >>> from lossnet.spaces import MultiLabel
    >>> prediction = Prediction(MultiLabel(1), torch.tensor([[0.0]]))
    >>> CD(samples=1)(lambda y: y.sum(-1), torch.ones(1, 1), torch.zeros(1, 1, 1), prediction)
    tensor([2.1269])
    """

    name: ClassVar[str] = "cd"
    score: Score | None = field(default_factory=F1)

    @classmethod
    def from_settings(cls, settings: Settings, score: Score) -> Self:
        return cls(settings.samples, score)
