"""The residual energy of label sets, with what is known clamped."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lossnet.conditional.base import Conditional
from lossnet.energies import LabelResidual
from lossnet.gibbs import Gibbs
from lossnet.trees import Tree

#: sets of training data that are kept, the most frequent, and those of an instance that the energy judges
_KEPT, _JUDGED = 10_000, 256
#: what the logarithm of a set's count may weigh
_WEIGHTS = 0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0
#: probabilities are kept this far from 0 and 1 before their logits are taken
_NEAREST = 1e-6


def logits_of(relaxed: Tensor) -> Tensor:
    """Return the logits of probabilities, which are finite."""
    return torch.logit(relaxed, _NEAREST)


class GivenOthers(nn.Module):
    """Logits of labels given the task net's logits and all other labels, ``(z, y)``: ``(batch, labels)``.

    Its cross-entropy is the energy's pseudo-likelihood (Besag, 1975).

    >>> GivenOthers(LabelResidual(2, rank=1))((torch.tensor([[1.0, -1.0]]), torch.ones(1, 2)))
    tensor([[ 1., -1.]], grad_fn=<AddBackward0>)
    """

    def __init__(self, energy: LabelResidual) -> None:
        super().__init__()
        self.energy = energy

    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:
        logits, y = x
        return logits + self.energy.gains(self.energy.encode(logits), y.unsqueeze(1)).squeeze(1)


class SeenSets(nn.Module):
    """Label sets of training data, of which a set that was there ``n`` times gains ``weight · ln(1 + n)``.

    Whole sets are right more often where those are preferred that have been seen, as a label powerset prefers
    them, and others may be predicted still.

    Args:
        labels: their number.

    >>> seen = SeenSets(labels=2).keep(torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]]))
    >>> seen.sets, seen.counts
    (tensor([[1, 0],
            [1, 1]], dtype=torch.uint8), tensor([2., 1.]))
    """

    sets: Tensor
    counts: Tensor
    weight: Tensor

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.labels = labels
        self.register_buffer("sets", torch.zeros(0, labels, dtype=torch.uint8))
        self.register_buffer("counts", torch.zeros(0))
        self.register_buffer("weight", torch.zeros(()))

    def keep(self, sets: Tensor) -> SeenSets:
        """Keep the most frequent of training ``sets`` ``(instances, labels)``."""
        unique, counts = sets.to(torch.uint8).unique(dim=0, return_counts=True)
        order = counts.argsort(descending=True, stable=True)[:_KEPT]
        self.sets, self.counts = unique[order], counts[order].float()
        return self

    def nearest(self, logits: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sets that agree with what is ``known`` and that independent labels find likeliest.

        They are ``(batch, K, labels)``, with what they gain, ``(batch, K)``: ``−inf`` of those that disagree.
        """
        sets = self.sets.to(logits)
        gains = self.weight.to(logits) * self.counts.to(logits).log1p()
        disagree = (known == 1).to(logits) @ (1 - sets).T + (known == 0).to(logits) @ sets.T > 0
        gains = gains.masked_fill(disagree, -torch.inf)
        chosen = (logits @ sets.T + gains).topk(min(_JUDGED, len(sets)), 1).indices
        return sets[chosen], gains.gather(1, chosen)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        empty = SeenSets(self.labels).state_dict()  # of folders that were written before there were any
        for name, value in empty.items():
            given = state_dict.setdefault(prefix + name, value)
            if name == "sets" and given.shape[1:] == value.shape[1:] and len(given) <= _KEPT:
                self.sets, self.counts = given.new_empty(given.shape), self.counts.new_empty(len(given))
        super()._load_from_state_dict(state_dict, prefix, *others)


class EnergyConditional(Conditional):
    """``P(y | x) ∝ P_task(y | x) · exp(−R(x, y))`` as an engine, by Gibbs sampling.

    Args:
        energy: ``R``, which reads the task net's calibrated logits.
        gibbs: how to sample.
    """

    engine: ClassVar[str] = "energy"

    def __init__(self, energy: LabelResidual, gibbs: Gibbs | None = None) -> None:
        super().__init__()
        self.energy, self.gibbs = energy, gibbs or Gibbs()
        self.seen = SeenSets(energy.correction.out_features)

    def marginals(self, x: Tree, relaxed: Tensor, known: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.gibbs.marginals(self.energy, logits_of(relaxed), known.to(relaxed.dtype))

    def sample(self, relaxed: Tensor, known: Tensor, count: int, seed: int = 0) -> Tensor:
        """Return ``count`` sets of each instance ``(batch, count, labels)``."""
        return self.gibbs.sample(self.energy, logits_of(relaxed), known.to(relaxed.dtype), count, seed)

    def log_prob(self, relaxed: Tensor, known: Tensor, y: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Return estimates of ``log P`` of sets ``(batch, K, labels)``, and their standard errors."""
        known = known.to(relaxed.dtype)
        return self.gibbs.log_prob(self.energy, logits_of(relaxed), known, y.to(relaxed.dtype), seed=seed)

    def likeliest(self, relaxed: Tensor, known: Tensor) -> Tensor:
        """Return the likeliest set of each instance ``(batch, labels)``, of those searched.

        Where whole sets are the goal, those of training data may be preferred (`prefer_seen`).
        """
        logits, known = logits_of(relaxed), known.to(relaxed.dtype)
        return self._preferred(logits, known, self.gibbs.likeliest(self.energy, logits, known))

    def _preferred(self, logits: Tensor, known: Tensor, found: Tensor) -> Tensor:
        """Return the sets ``found`` ``(batch, labels)``, or training sets that are likelier by their gain."""
        if not self.seen.weight:
            return found
        sets, gains = self.seen.nearest(logits, known)
        heights = self.gibbs.heights(self.energy, logits, torch.cat([found.unsqueeze(1), sets], 1))
        heights = heights + torch.cat([torch.zeros_like(gains[:, :1]), gains], 1)
        best = heights.argmax(1)
        rows = torch.arange(len(found), device=found.device)
        return torch.where((best > 0).unsqueeze(1), sets[rows, (best - 1).clamp_min(0)], found)

    def prefer_seen(self, sets: Tensor, relaxed: Tensor, truth: Tensor) -> float:
        """Choose what training ``sets`` gain, and return the share of whole sets that are then right.

        It is the least of the weights with the most instances of validation data right; ``relaxed`` and
        ``truth`` ``(instances, labels)`` are those.
        """
        self.seen.keep(sets.to(relaxed.device))
        logits, truth = logits_of(relaxed), truth.to(relaxed)
        nothing = torch.full_like(logits, torch.nan)
        parts = [(logits[rows], nothing[rows], truth[rows]) for rows in torch.arange(len(logits)).split(512)]
        found = [self.gibbs.likeliest(self.energy, logits, known) for logits, known, _ in parts]
        right = {}
        for weight in _WEIGHTS:
            self.seen.weight.fill_(weight)
            whole = [
                (self._preferred(logits, known, own) == truth).all(1)
                for (logits, known, truth), own in zip(parts, found, strict=True)
            ]
            right[weight] = float(torch.cat(whole).float().mean())
        best = max(right, key=lambda weight: right[weight])
        self.seen.weight.fill_(best)
        return right[best]

    def doubts(self, relaxed: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``log P(y′) − log P(y)`` ``(batch,)`` of sets ``y``, and the likelier sets ``y′``."""
        logits, y = logits_of(relaxed), y.to(relaxed.dtype)
        likelier = self.gibbs.likeliest(self.energy, logits, torch.full_like(logits, torch.nan))
        both = self.gibbs.heights(self.energy, logits, torch.stack([likelier, y], 1))
        return both[:, 0] - both[:, 1], likelier
