"""Label sets under ``P(y | x) ∝ P_task(y | x) · exp(−R(x, y))``: sampled, judged, and the likeliest found.

What is known of a set is clamped.  Inputs are the task net's logits ``(batch, labels)``, and ``known``
``(batch, labels)`` is 1, 0, or NaN where nothing is known.  ``R`` is a `LabelResidual`.

An instance's marginals and log-probabilities do not depend on which others are in its batch: all use the same
random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lossnet.energies import LabelResidual

__all__ = ["Gibbs"]

#: chances of a proposal are kept this far from 0 and 1, so that weights stay finite
_LEAST = 1e-3


@dataclass(frozen=True)
class Gibbs:
    """Gibbs sampling, which draws one label after another given all others.

    Args:
        chains: for each instance.
        sweeps: over its labels, of each chain.
        burn_in: sweeps that do not count.
        most: labels that vary, the likeliest unknown ones; the others are not set in samples.  Their
            marginals are computed all the same.

    >>> energy, logits = LabelResidual(labels=3, rank=2), torch.tensor([[2.0, 0.0, -2.0]])
    >>> known = torch.tensor([[torch.nan, 1.0, torch.nan]])
    >>> Gibbs().marginals(energy, logits, known, partly=False)
    tensor([[0.8808, 1.0000, 0.1192]])
    """

    chains: int = 8
    sweeps: int = 24
    burn_in: int = 6
    most: int = 100

    @torch.no_grad()
    def marginals(
        self, energy: LabelResidual, logits: Tensor, known: Tensor, seed: int = 0, partly: bool = True
    ) -> Tensor:
        """Return ``P(y_i = 1 | x, known)`` of each label ``(batch, labels)``: means of it given all others.

        What is known may be taken as such or, ``partly``, as a part of the set whose share nobody knows:
        where three labels are known, there are hardly fifty.  See `shared_steps`.
        """
        encoded, total, count = energy.encode(logits), torch.zeros_like(logits), 0
        steps = shared_steps(known) if partly else torch.zeros_like(logits)
        states = self._states(
            energy, logits, known, self.chains, _generator(logits, seed), shared=True, steps=steps
        )
        for sweep, y in enumerate(states):
            if sweep >= self.burn_in:
                others = (y.sum(-1, keepdim=True) - y).round().long().clamp(0, y.shape[-1] - 1)
                told = steps.unsqueeze(1).expand(-1, y.shape[1], -1).gather(2, others)
                total += (logits.unsqueeze(1) + energy.gains(encoded, y) + told).sigmoid().mean(1)
                count += 1
        return torch.where(known.isnan(), total / count, known)

    @torch.no_grad()
    def sample(
        self, energy: LabelResidual, logits: Tensor, known: Tensor, count: int, seed: int = 0
    ) -> Tensor:
        """Return ``count`` label sets of each instance ``(batch, count, labels)``, each from its chain."""
        *_, last = self._states(energy, logits, known, count, _generator(logits, seed), shared=False)
        return last

    @torch.no_grad()
    def log_prob(
        self,
        energy: LabelResidual,
        logits: Tensor,
        known: Tensor,
        y: Tensor,
        draws: int = 1000,
        seed: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """Return estimates of ``log P(y | x, known)`` of sets ``(batch, K, labels)``, and standard errors.

        ``−∞`` for sets that differ from what is known.  The partition function is estimated by importance
        sampling, ``Z = E_q[P_task(y) · exp(−R(x, y)) / q(y)]``, where labels are independent under ``q``: two
        thirds of ``draws`` have the marginals of Gibbs sampling, one third the task net's probabilities.
        """
        free, encoded = known.isnan(), energy.encode(logits)
        clamped = torch.where(free, 0, known)
        generator = _generator(logits, seed)
        proposals = [self.marginals(energy, logits, known, seed), logits.sigmoid()]
        proposals = [one.clamp(_LEAST, 1 - _LEAST) for one in proposals]
        numbers = torch.rand(draws, logits.shape[1], generator=generator, device=logits.device).to(logits)
        drawn = torch.cat(
            [
                (part < torch.where(free, chances, clamped).unsqueeze(1)).to(logits)
                for chances, part in zip(
                    proposals, numbers.split([draws - draws // 3, draws // 3]), strict=True
                )
            ],
            1,
        )
        density = torch.stack([_independent(one.logit(), drawn, free) for one in proposals])
        shares = density.new_tensor([1 - draws // 3 / draws, draws // 3 / draws]).log()
        mixture = (density + shares[:, None, None]).logsumexp(0)
        weights = _independent(logits, drawn, free) - energy.evaluate(encoded, drawn) - mixture
        partition = weights.logsumexp(1, keepdim=True) - math.log(draws)
        # Of a mean's logarithm, by the delta method.
        error = (weights - partition).exp().std(1, keepdim=True) / draws**0.5
        fits = (free.unsqueeze(1) | (y == clamped.unsqueeze(1))).all(-1)
        found = _independent(logits, y, free) - energy.evaluate(encoded, y) - partition
        return found.masked_fill(~fits, -math.inf), error.expand_as(found).masked_fill(~fits, 0)

    @torch.no_grad()
    def likeliest(self, energy: LabelResidual, logits: Tensor, known: Tensor, seed: int = 0) -> Tensor:
        """Return the likeliest set found ``(batch, labels)``.

        Chains start hot and are cooled down.  The likeliest set that they pass, or the task net's, then
        changes one label at a time for as long as that makes it likelier.
        """
        encoded, free = energy.encode(logits), known.isnan()
        start = torch.where(free, (logits > 0).to(logits.dtype), known)
        best, height = start, self._height(energy, encoded, logits, start.unsqueeze(1), free).squeeze(1)
        states = self._states(
            energy, logits, known, self.chains, _generator(logits, seed), shared=True, annealed=True
        )
        for y in states:
            heights = self._height(energy, encoded, logits, y, free)
            value, place = heights.max(1)
            better = value > height
            best = torch.where(better.unsqueeze(1), y[torch.arange(len(y)), place], best)
            height = torch.where(better, value, height)
        for _ in range(2 * best.shape[1]):
            odds = logits + energy.gains(encoded, best.unsqueeze(1)).squeeze(1)
            gain = torch.where(free, torch.where(best > 0, -odds, odds), -math.inf)
            value, place = gain.max(1)
            if not bool((value > 1e-6).any()):
                break
            flipped = best.scatter(1, place.unsqueeze(1), 1 - best.gather(1, place.unsqueeze(1)))
            best = torch.where((value > 1e-6).unsqueeze(1), flipped, best)
        return best

    @torch.no_grad()
    def heights(self, energy: LabelResidual, logits: Tensor, y: Tensor) -> Tensor:
        """Return ``log P`` of sets ``(batch, K, labels)`` up to a constant of each instance."""
        return self._height(
            energy, energy.encode(logits), logits, y, torch.ones_like(logits, dtype=torch.bool)
        )

    @staticmethod
    def _height(energy: LabelResidual, encoded: object, logits: Tensor, y: Tensor, free: Tensor) -> Tensor:
        """Return ``log P`` of sets ``(batch, K, labels)`` up to a constant, ``(batch, K)``."""
        return _independent(logits, y, free) - energy.evaluate(encoded, y)  # type: ignore[arg-type]

    def _states(
        self,
        energy: LabelResidual,
        logits: Tensor,
        known: Tensor,
        chains: int,
        generator: torch.Generator,
        shared: bool,
        annealed: bool = False,
        steps: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """Yield the sets ``(batch, chains, labels)`` of chains after each sweep.

        Random numbers are ``shared`` by the instances of a batch, or independent.  ``steps``
        ``(batch, labels)`` are added to the log odds of a label beside so many others.
        """
        batch, labels = logits.shape
        free, rows = known.isnan(), 1 if shared else batch
        correction, expected = energy.encode(logits)
        slots = min(self.most, labels)
        chosen = torch.where(free, logits, -math.inf).topk(slots, 1).indices
        varies = free.gather(1, chosen)
        own = (logits + correction.squeeze(1)).gather(1, chosen)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(rows, *shape, generator=generator, device=logits.device, dtype=logits.dtype)

        fixed = torch.where(free, 0, known).unsqueeze(1).expand(-1, chains, -1)
        start = (uniform(chains, slots) < own.sigmoid().unsqueeze(1)) & varies.unsqueeze(1)
        y = torch.where(free.unsqueeze(1), 0, fixed).scatter_add(
            2, chosen.unsqueeze(1).expand(-1, chains, -1), start.to(logits.dtype)
        )
        steps = torch.zeros_like(logits) if steps is None else steps
        if energy.rank:
            factors = energy.factors.T[chosen]  # (batch, slots, rank)
            weighted = 2 * energy.strengths * factors
            squares = (weighted * factors).sum(-1)
            steps, state = steps + energy.counts.diff(), y @ energy.factors.T
        count = y.sum(-1)
        values = y.gather(2, chosen.unsqueeze(1).expand(-1, chains, -1)).unbind(2)
        current = list(values)
        for sweep in range(self.sweeps):
            heat = 1.0 if not annealed else max(0.05, 2 * (1 - sweep / max(self.sweeps - 1, 1)))
            order = torch.randperm(slots, generator=generator, device=generator.device).tolist()
            draws = uniform(chains, slots).clamp(1e-12, 1 - 1e-7).logit() * heat
            for slot in order:
                old, odds = current[slot], own[:, slot : slot + 1]
                others = count - old
                odds = odds + steps.gather(1, others.round().long().clamp(0, labels - 1))
                if energy.rank:
                    pairs = (
                        torch.einsum("bcr,br->bc", state, weighted[:, slot]) - old * squares[:, slot, None]
                    )
                    odds = odds + pairs + energy.spread * (2 * (others - expected) + 1)
                drawn = (draws[:, :, slot] < odds) & varies[:, slot : slot + 1]
                new = drawn.to(old.dtype).expand_as(old)
                new = torch.where(varies[:, slot : slot + 1], new, old)
                count = count + new - old
                if energy.rank:
                    state = state + (new - old).unsqueeze(-1) * factors[:, slot].unsqueeze(1)
                current[slot] = new
            y = fixed.scatter(2, chosen.unsqueeze(1).expand(-1, chains, -1), torch.stack(current, 2))
            yield y


def shared_steps(known: Tensor) -> Tensor:
    """Return what their number says of one more label once some labels are known, ``(batch, labels)``.

    Of a set of ``n`` among ``L`` labels, ``k`` are known and ``m`` others are ruled out.  If each label was
    known with a chance ``s``, and each other one ruled out with a chance ``t``, both uniform, that has a
    probability of ``B(k + 1, n − k + 1) · B(m + 1, L − n − m + 1)``, the latter only where ``m > 0``: people
    often say only what is there.  Column ``n`` is the difference of its logarithms at ``n + 1`` and ``n``.

    >>> shared_steps(torch.tensor([[1.0, torch.nan, torch.nan]])).exp()[:, 1:]
    tensor([[0.3333, 0.5000]])
    """
    labels = known.shape[1]
    n = torch.arange(labels + 1, device=known.device, dtype=known.dtype)
    ones, zeros = ((known == value).sum(1, keepdim=True).to(known.dtype) for value in (1, 0))

    def beta(told: Tensor, of: Tensor) -> Tensor:
        left = (of - told).clamp_min(0)
        return torch.lgamma(left + 1) - torch.lgamma(told + left + 2)

    return (beta(ones, n) + (zeros > 0) * beta(zeros, labels - n)).diff(dim=1)


def _independent(logits: Tensor, y: Tensor, free: Tensor) -> Tensor:
    """Return ``log P`` of sets ``(batch, K, labels)`` of independent labels, of the ``free`` ones alone."""
    weights = torch.where(free, logits, 0)
    normal = torch.where(free, torch.nn.functional.softplus(logits), 0).sum(1, keepdim=True)
    return torch.einsum("bkl,bl->bk", y, weights) - normal


def _generator(like: Tensor, seed: int) -> torch.Generator:
    return torch.Generator(like.device).manual_seed(seed)
