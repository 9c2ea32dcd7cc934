"""Local search: minimise an objective, such as an energy, over discrete outputs by small moves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lossnet.inference.gradient import Inferred, Objective
from lossnet.spaces import Space


@dataclass(frozen=True)
class LocalSearch:
    """Hill-climbing of a batch: of some random moves (`Space.moves`) each output takes the best one.

    It needs no gradient, so that an objective may be any function of whole outputs.

    Args:
        rounds: how often moves are drawn.
        moves: how many at a time.

    >>> from lossnet.spaces import MultiLabel
    >>> energy = lambda y: (y.sum(-1) - 2).abs() + y[..., 0]
    >>> torch.manual_seed(0) and LocalSearch()(energy, MultiLabel(4), torch.tensor([[1.0, 1, 1, 1]])).values
    tensor([[0.]])
    """

    rounds: int = 10
    moves: int = 32

    def __call__(
        self,
        objective: Objective,
        space: Space,
        start: Tensor,
        mask: Tensor | None = None,
        breaks: Tensor | None = None,
    ) -> Inferred:
        """Return one output for each of ``start`` ``(batch, *event)``; ``breaks`` are for `Space.moves`."""
        best, value = start, objective(start.unsqueeze(1)).squeeze(1)
        steps = torch.zeros_like(value, dtype=torch.long)
        rows = torch.arange(len(start), device=start.device)
        for _ in range(self.rounds):
            candidates = space.moves(best, self.moves, mask, breaks)
            lowest, place = objective(candidates).min(1)
            better = lowest < value
            value = torch.where(better, lowest, value)
            chosen = candidates[rows, place]
            best = torch.where(better.reshape(-1, *[1] * (best.dim() - 1)), chosen, best)
            steps += better
        return Inferred(best.unsqueeze(1), value.unsqueeze(1), steps.unsqueeze(1))
