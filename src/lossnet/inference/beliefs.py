"""Beliefs about label sets and pairs of labels: Frank-Wolfe, with belief propagation inside."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lossnet.inference.gradient import Objective


@dataclass(frozen=True)
class Beliefs:
    """Chances of labels, ``nodes``, and of two at once, ``pairs``.

    They are ``(batch, labels)`` and ``(batch, labels, labels)``; the diagonal of ``pairs`` means nothing.
    """

    nodes: Tensor
    pairs: Tensor

    def expected(self, potentials: Tensor) -> Tensor:
        """Return ``Σ_{i<j} θ_ij b_ij`` for potentials ``(batch, labels, labels)``, as ``(batch,)``."""
        return (potentials * self.pairs).sum((1, 2)) / 2

    def entropy(self) -> Tensor:
        """Return Bethe's entropy ``Σ_i H(b_i) − Σ_{i<j} I(b_ij)``, ``(batch,)``: exact on trees.

        >>> Beliefs(torch.full((1, 2), 0.5), torch.full((1, 2, 2), 0.25)).entropy() / torch.tensor(2.0).log()
        tensor([2.])
        >>> Beliefs(torch.full((1, 2), 0.5), torch.full((1, 2, 2), 0.5)).entropy() / torch.tensor(2.0).log()
        tensor([1.])
        """
        one, other = self.nodes.unsqueeze(2), self.nodes.unsqueeze(1)
        cells = (
            (self.pairs, one * other),
            (one - self.pairs, one * (1 - other)),
            (other - self.pairs, (1 - one) * other),
            (1 - one - other + self.pairs, (1 - one) * (1 - other)),
        )
        # Rounding makes cells a little less than 0, or more than 0 where there is no chance at all.
        bounded = [(cell.clamp(min=0), alone.clamp(min=1e-30)) for cell, alone in cells]
        mutual = sum(
            (torch.xlogy(cell, cell) - torch.xlogy(cell, alone) for cell, alone in bounded),
            torch.zeros_like(self.pairs),
        )
        mutual = mutual - torch.diag_embed(mutual.diagonal(dim1=1, dim2=2))
        single = -torch.xlogy(self.nodes, self.nodes) - torch.xlogy(1 - self.nodes, 1 - self.nodes)
        return single.sum(1) - mutual.sum((1, 2)) / 2


def pair_beliefs(nodes: Tensor, potentials: Tensor) -> Tensor:
    """Return the chances of two labels at once, given each one's and the potential between them.

    They are a fixed point of belief propagation with these ``nodes`` (Welling and Teh 2001): the odds
    ratio of two labels is ``exp(−θ)``.  They lie between ``max(0, p + q − 1)`` and ``min(p, q)``.

    >>> pair_beliefs(torch.tensor([[0.5, 0.5]]), torch.tensor([[[0.0, 0.0], [0.0, 0.0]]]))[0, 0, 1]
    tensor(0.2500)
    """
    one, other = nodes.unsqueeze(2), nodes.unsqueeze(1)
    excess = torch.expm1(-_bounded(potentials))
    middle = 1 + excess * (one + other)
    root = (middle**2 - 4 * excess * (1 + excess) * one * other).clamp(min=0).sqrt()
    # Two forms of one root: in each case that which subtracts nothing alike.
    positive = 2 * (1 + excess) * one * other / (middle + root).clamp(min=1e-30)
    negative = (middle - root) / (2 * torch.where(middle < 0, excess, -1.0))
    least, most = (one + other - 1).clamp(min=0), torch.minimum(one, other)
    return torch.where(middle < 0, negative, positive).clamp(least, most)


@dataclass(frozen=True)
class FrankWolfe:
    """Minimise ``f(b) + Σ_{i<j} θ_ij b_ij − τ H(b)`` over beliefs ``b`` in sets of labels and in their pairs.

    GSPEN's inference, where ``f`` is any differentiable function of the beliefs in labels:
    in each step its gradient gives every label a cost, the beliefs for these costs and the potentials are
    found by loopy belief propagation, and what there was moves towards them by ``2 / (t + 2)``.  Messages are
    carried over between steps.  Where ``f`` is linear and the pairs form a tree, enough sweeps are exact.

    At ``τ = 1``, beliefs under costs of labels alone are probabilities, ``σ(−cost)``; the paper's are those
    of ``τ = 0``, which are certain.

    Args:
        steps: of Frank and Wolfe.
        sweeps: of belief propagation in each of them; in a sweep all messages change at once, by half.
        temperature: ``τ``, above 0.

    >>> costs = torch.tensor([[-1.0, 0.0]])
    >>> found = FrankWolfe()(lambda y: (y * costs.unsqueeze(1)).sum(-1), torch.zeros(1, 2, 2))
    >>> torch.allclose(found.nodes, torch.sigmoid(-costs))
    True
    """

    steps: int = 20
    sweeps: int = 2
    temperature: float = 1.0

    def __call__(self, objective: Objective, potentials: Tensor) -> Beliefs:
        """Return the beliefs for an objective of candidates, ``f``, and ``θ`` ``(batch, labels, labels)``."""
        scaled = _bounded(potentials.detach() / self.temperature)
        excess = torch.expm1(-scaled)
        messages = torch.zeros_like(scaled)  # from the label of a row to that of a column
        nodes = scaled.new_full(scaled.shape[:2], 0.5)
        for step in range(self.steps):
            y = nodes.unsqueeze(1).requires_grad_()
            with torch.enable_grad():
                (costs,) = torch.autograd.grad(objective(y).sum(), y)
            alone = -costs.squeeze(1) / self.temperature
            for _ in range(self.sweeps):
                # what a label hears from all others but the one that it tells
                heard = (alone + messages.sum(1)).unsqueeze(2) - messages.mT
                # log (1 + exp(heard − θ)) / (1 + exp(heard))
                messages = (messages + torch.log1p(torch.sigmoid(heard) * excess)) / 2
            nodes = nodes + 2 / (step + 2) * (torch.sigmoid(alone + messages.sum(1)) - nodes)
        return Beliefs(nodes, pair_beliefs(nodes, scaled))


def _bounded(potentials: Tensor) -> Tensor:
    """Return potentials within what the precision can tell from certainty, ``±15.9`` of single precision."""
    most = -math.log(torch.finfo(potentials.dtype).eps)
    return potentials.clamp(-most, most)
